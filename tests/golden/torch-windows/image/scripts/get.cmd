@echo off
rem Downloads FARM_URL to FARM_FILE and holds it against FARM_SHA256. FARM_EXIT says how it failed.
rem FARM_ARCHIVES, a folder or the URL of one, is tried first, by the name of the file. It is not shown: a URL may hold a password.
if not defined FARM_ARCHIVES goto :pinned
for %%n in ("%FARM_URL:/=\%") do set "FARM_NAME=%%~nxn"
if /i "%FARM_ARCHIVES:~0,4%"=="http" goto :mirror
if not exist "%FARM_ARCHIVES%\%FARM_NAME%" goto :pinned
copy /y /b "%FARM_ARCHIVES%\%FARM_NAME%" "%FARM_FILE%" >nul
if not "%ERRORLEVEL%"=="0" goto :pinned
goto :own
:mirror
curl.exe -fsSL --retry 5 --retry-delay 5 -o "%FARM_FILE%" "%FARM_ARCHIVES%/%FARM_NAME%"
if not "%ERRORLEVEL%"=="0" goto :pinned
:own
call :same
if defined FARM_SAME exit /b 0
echo get.cmd: %FARM_NAME% of FARM_ARCHIVES has another sha256 than the pinned %FARM_SHA256%; not used
:pinned
rem -f: an error page is no installer. Not by Python: in a fresh container it finds no root certificates.
curl.exe -fsSL --retry 5 --retry-delay 5 -o "%FARM_FILE%" "%FARM_URL%"
if not "%ERRORLEVEL%"=="0" goto :failed
call :same
if defined FARM_SAME exit /b 0
del "%FARM_FILE%"
echo get.cmd: "%FARM_URL%" has another sha256 than the pinned %FARM_SHA256%; it was removed
set "FARM_EXIT=6"
exit /b 6
:failed
echo get.cmd: "%FARM_URL%" cannot be downloaded; FARM_ARCHIVES may name a folder or mirror of your own
set "FARM_EXIT=9"
exit /b 9
:same
set "FARM_SAME="
for /f "delims=" %%h in ('certutil -hashfile "%FARM_FILE%" SHA256') do if /i "%%h"=="%FARM_SHA256%" set "FARM_SAME=1"
exit /b 0
