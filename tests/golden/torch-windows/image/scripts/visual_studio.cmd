@echo off
rem Installs Visual Studio into the image. Rendered by farm. Nothing of a channel stands here: images share this layer.
setlocal EnableExtensions DisableDelayedExpansion
if not exist get.cmd cd /d "%~dp0"
if not exist get.cmd exit /b 9
if not exist C:\farm\t\ mkdir C:\farm\t
set "FARM_FILE=C:\farm\t\download.exe"
set "FARM_URL=https://download.visualstudio.microsoft.com/download/pr/173680e6-f352-4b2b-975f-96e006bf9720/SHA256/vs_BuildTools.exe"
set "FARM_SHA256=SHA256"
call .\get.cmd
if not "%ERRORLEVEL%"=="0" exit /b %FARM_EXIT%
rem --norestart: a restart inside a container ends in ERROR_TOO_MANY_OPEN_FILES. --nocache: no copy of the payload stays.
rem VisualStudio.chman beside this file is Microsoft's list of packages, each with its sha256, of one day: it pins what is installed.
set "FARM_CHANNEL="
if exist VisualStudio.chman set "FARM_CHANNEL=--channelUri C:\farm\scripts\VisualStudio.chman --installChannelUri C:\farm\scripts\VisualStudio.chman"
if not defined FARM_CHANNEL echo visual_studio.cmd: no VisualStudio.chman: the packages are those of Microsoft's channel of today
start /w "" "%FARM_FILE%" --quiet --wait --norestart --nocache %FARM_CHANNEL% --installPath C:\BuildTools --add Microsoft.VisualStudio.Workload.VCTools --add Microsoft.Component.MSBuild --add Microsoft.VisualStudio.Component.VC.Tools.x86.x64 --add Microsoft.VisualStudio.Component.VC.Redist.14.Latest --add Microsoft.VisualStudio.Component.Windows10SDK.19041

set "FARM_EXIT=%ERRORLEVEL%"
del "%FARM_FILE%"
rem 3010: done, a restart would be needed.
if "%FARM_EXIT%"=="0" goto :there
if "%FARM_EXIT%"=="3010" goto :there
echo visual_studio.cmd: the Visual Studio installer ended with %FARM_EXIT%; its own errors:
for %%f in ("%TEMP%\dd_setup_*_errors.log") do type "%%f"
if "%FARM_EXIT%"=="1603" echo   1603: a package cannot be installed in this base image, as on Server 2019: use a newer one ^(FARM_TAG^)
rem Microsoft's collector of all logs. Its URL has no versions, so it cannot be pinned: its signature is looked at.
set "FARM_FILE=C:\farm\t\vscollect.exe"
curl.exe -fsSL --retry 5 -o "%FARM_FILE%" https://aka.ms/vscollect.exe
if not "%ERRORLEVEL%"=="0" exit /b 9
powershell -NoProfile -Command "$s = Get-AuthenticodeSignature $env:FARM_FILE; if ($s.Status -ne 'Valid' -or $s.SignerCertificate.Subject -notmatch 'O=Microsoft Corporation') { exit 1 }"
if not "%ERRORLEVEL%"=="0" exit /b 9
start /w "" "%FARM_FILE%" -zip:C:\vslogs.zip
echo   all logs: docker ps -a shows the container that failed, docker cp CONTAINER:C:\vslogs.zip . copies them
exit /b 9
:there
for /d %%t in (C:\BuildTools\VC\Tools\MSVC\14.29.*) do if exist "%%t\bin\Hostx64\x64\cl.exe" exit /b 0
echo visual_studio.cmd: the installer ended well and there is no cl.exe of toolset 14.29 in C:\BuildTools
exit /b 9
