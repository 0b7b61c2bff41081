@echo off
rem Installs one thing into the image: visual_studio, python, git or packages. Rendered by farm.
setlocal EnableExtensions DisableDelayedExpansion
if not exist C:\farm\t\ mkdir C:\farm\t
set "FARM_FILE=C:\farm\t\download.exe"
if "%~1"=="visual_studio" goto :visual_studio
if "%~1"=="python" goto :python
if "%~1"=="git" goto :git
if "%~1"=="packages" goto :packages
echo install.cmd: no such part: %1
exit /b 2

:visual_studio
set "FARM_URL=https://download.visualstudio.microsoft.com/download/pr/173680e6-f352-4b2b-975f-96e006bf9720/8e7b3929a3299f4f7620c33ba23fcb737e062274d98cb525fd9f6d2e7b655afe/vs_BuildTools.exe"
set "FARM_SHA256=8e7b3929a3299f4f7620c33ba23fcb737e062274d98cb525fd9f6d2e7b655afe"
call :get
if not "%ERRORLEVEL%"=="0" exit /b %ERRORLEVEL%
rem --norestart: a restart inside a container ends in ERROR_TOO_MANY_OPEN_FILES. --nocache: no copy of the payload stays.
start /w "" "%FARM_FILE%" --quiet --wait --norestart --nocache --installPath C:\BuildTools --add Microsoft.VisualStudio.Workload.VCTools --add Microsoft.Component.MSBuild --add Microsoft.VisualStudio.Component.VC.Tools.x86.x64 --add Microsoft.VisualStudio.Component.VC.Redist.14.Latest --add Microsoft.VisualStudio.Component.Windows10SDK.19041

set "FARM_EXIT=%ERRORLEVEL%"
del "%FARM_FILE%"
rem 3010: done, a restart would be needed.
if "%FARM_EXIT%"=="0" goto :visual_studio_there
if "%FARM_EXIT%"=="3010" goto :visual_studio_there
echo install.cmd: the Visual Studio installer ended with %FARM_EXIT%; its own errors:
for %%f in ("%TEMP%\dd_setup_*_errors.log") do type "%%f"
exit /b 9
:visual_studio_there
if exist C:\BuildTools\VC\Tools\MSVC\14.29* exit /b 0
echo install.cmd: the installer ended well and there is no toolset 14.29 in C:\BuildTools
exit /b 9

:python
set "FARM_URL=https://www.python.org/ftp/python/3.10.11/python-3.10.11-amd64.exe"
set "FARM_SHA256=d8dede5005564b408ba50317108b765ed9c3c510342a598f9fd42681cbe0648b"
call :get
if not "%ERRORLEVEL%"=="0" exit /b %ERRORLEVEL%
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
set "FARM_SHA256=7ed2a3ce5bbbf8eea976488de5416894ca3e6a0347cee195a7d768ac146d5290"
call :get
if not "%ERRORLEVEL%"=="0" exit /b %ERRORLEVEL%
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
call prepare.cmd
if not "%ERRORLEVEL%"=="0" goto :packages_failed
rmdir /s /q C:\farm\downloads
exit /b 0
:packages_failed
type "%FARM_LOG%"
echo install.cmd: %FARM_STEP% failed; %FARM_NEXT%
exit /b 9

:get
rem Downloads FARM_URL to FARM_FILE and holds it against FARM_SHA256; -f: an error page is no installer.
curl.exe -fsSL --retry 5 --retry-delay 5 -o "%FARM_FILE%" "%FARM_URL%"
if not "%ERRORLEVEL%"=="0" goto :get_failed
set "FARM_SAME="
for /f "delims=" %%h in ('certutil -hashfile "%FARM_FILE%" SHA256') do if /i "%%h"=="%FARM_SHA256%" set "FARM_SAME=1"
if defined FARM_SAME exit /b 0
del "%FARM_FILE%"
echo install.cmd: "%FARM_URL%" has another sha256 than the pinned %FARM_SHA256%; it was removed
exit /b 6
:get_failed
echo install.cmd: "%FARM_URL%" cannot be downloaded
exit /b 9
