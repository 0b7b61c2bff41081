@echo off
rem Downloads FARM_URL to FARM_FILE and holds it against FARM_SHA256; -f: an error page is no installer. FARM_EXIT says how it failed.
curl.exe -fsSL --retry 5 --retry-delay 5 -o "%FARM_FILE%" "%FARM_URL%"
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_SAME="
for /f "delims=" %%h in ('certutil -hashfile "%FARM_FILE%" SHA256') do if /i "%%h"=="%FARM_SHA256%" set "FARM_SAME=1"
if defined FARM_SAME exit /b 0
del "%FARM_FILE%"
echo get.cmd: "%FARM_URL%" has another sha256 than the pinned %FARM_SHA256%; it was removed
set "FARM_EXIT=6"
exit /b 6
:failed
echo get.cmd: "%FARM_URL%" cannot be downloaded
set "FARM_EXIT=9"
exit /b 9
