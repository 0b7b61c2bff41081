@echo off
rem Installs one thing into the image: python, git or packages. Rendered by farm.
setlocal EnableExtensions DisableDelayedExpansion
if not exist get.cmd cd /d "%~dp0"
if not exist get.cmd exit /b 9
if not exist C:\farm\t\ mkdir C:\farm\t
set "FARM_FILE=C:\farm\t\download.exe"
if "%~1"=="python" goto :python
if "%~1"=="git" goto :git
if "%~1"=="packages" goto :packages
echo install.cmd: no such part: %1
exit /b 2

:python
set "FARM_URL=https://www.python.org/ftp/python/3.11.9/python-3.11.9-amd64.exe"
set "FARM_SHA256=SHA256"
call .\get.cmd
if not "%ERRORLEVEL%"=="0" exit /b %FARM_EXIT%
start /w "" "%FARM_FILE%" /quiet InstallAllUsers=1 TargetDir=C:\farm\python PrependPath=0 AssociateFiles=0 Shortcuts=0 Include_launcher=0 Include_doc=0 Include_test=0
set "FARM_EXIT=%ERRORLEVEL%"
del "%FARM_FILE%"
if "%FARM_EXIT%"=="3010" set "FARM_EXIT=0"
if "%FARM_EXIT%"=="0" if exist C:\farm\python\python.exe exit /b 0
echo install.cmd: the Python installer ended with %FARM_EXIT%
exit /b 9

:git
set "FARM_FILE=C:\farm\t\git.zip"
set "FARM_URL=https://github.com/git-for-windows/git/releases/download/v2.45.2.windows.1/MinGit-2.45.2-64-bit.zip"
set "FARM_SHA256=SHA256"
call .\get.cmd
if not "%ERRORLEVEL%"=="0" exit /b %FARM_EXIT%
mkdir C:\farm\git
if not exist C:\farm\git\ exit /b 9
tar.exe -xf "%FARM_FILE%" -C C:\farm\git
if not "%ERRORLEVEL%"=="0" exit /b 9
del "%FARM_FILE%"
C:\farm\git\cmd\git.exe config --system core.longpaths true
if not "%ERRORLEVEL%"=="0" exit /b 9
exit /b 0

:packages
set "FARM_PYTHON=C:\farm\python\python.exe"
set "FARM_LOG=C:\farm\t\prepare.log"
cd /d C:\farm\scripts
for %%k in (.) do if /i not "%%~fk"=="C:\farm\scripts" exit /b 9
call .\prepare.cmd
if not "%ERRORLEVEL%"=="0" goto :packages_failed
rmdir /s /q C:\farm\downloads
exit /b 0
:packages_failed
type "%FARM_LOG%"
echo install.cmd: %FARM_STEP% failed; %FARM_NEXT%
exit /b 9
