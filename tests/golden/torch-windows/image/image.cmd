@echo off
rem Makes the toolchain image of this folder on a Windows engine. Rendered by farm.
rem Set before, if wanted: FARM_TAG (a Server Core tag), FARM_BASE (a base image of your own, such as the same by digest),
rem FARM_MEMORY_GB (default 16), FARM_ARCHIVES (a URL that is asked for each download first).
setlocal EnableExtensions DisableDelayedExpansion
pushd "%~dp0" 2>nul
if not exist image.cmd popd
if not exist image.cmd exit /b 9
if not defined FARM_MEMORY_GB set "FARM_MEMORY_GB=16"
if not defined FARM_ARCHIVES if exist archives.txt for /f "usebackq delims=" %%a in ("archives.txt") do set "FARM_ARCHIVES=%%a"
if defined FARM_ARCHIVES set "FARM_ARCHIVES=%FARM_ARCHIVES:"=%"
set "FARM_OS="
for /f "delims=" %%o in ('docker info --format "{{.OSType}}"') do set "FARM_OS=%%o"
if "%FARM_OS%"=="windows" goto :engine
echo image.cmd: no Docker engine with Windows containers answers (OSType: "%FARM_OS%"); switch Docker Desktop to Windows containers, or start the service
exit /b 4
:engine
set "FARM_BUILD="
for /f "tokens=1-3" %%a in ('reg query "HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion" /v CurrentBuildNumber') do if "%%a"=="CurrentBuildNumber" set "FARM_BUILD=%%c"
if not defined FARM_BUILD echo image.cmd: the build of this Windows cannot be read& exit /b 9
rem Process isolation: the image's build must fit the host's. Isolation by Hyper-V would mean 1 GB and 2 CPUs unless set.
set "FARM_TAGS="
if not defined FARM_TAGS if %FARM_BUILD% GEQ 26100 set "FARM_TAGS=ltsc2025 ltsc2022"
if not defined FARM_TAGS if %FARM_BUILD% GEQ 22000 set "FARM_TAGS=ltsc2022"
if not defined FARM_TAGS if %FARM_BUILD% GEQ 20348 set "FARM_TAGS=ltsc2022"
if defined FARM_TAGS goto :tags
echo image.cmd: build %FARM_BUILD% of Windows cannot build in a container: 20348 ^(Windows Server 2022^) is the oldest that can
echo   Windows 10 refuses process isolation; in images of Server 2019 the installer of Visual Studio fails with 1603
echo   next: run job\build.cmd on this machine itself
exit /b 4
:tags
set "FARM_CHOSEN="
if not defined FARM_TAG for %%t in (%FARM_TAGS%) do if not defined FARM_CHOSEN set "FARM_CHOSEN=%%t"
if defined FARM_TAG for %%t in (%FARM_TAGS%) do if /i "%%t"=="%FARM_TAG%" set "FARM_CHOSEN=%%t"
if not defined FARM_CHOSEN echo image.cmd: build %FARM_BUILD% of Windows does not run %FARM_TAG% under process isolation; it runs: %FARM_TAGS%& exit /b 4
if not defined FARM_BASE if "%FARM_CHOSEN%"=="ltsc2022" set "FARM_BASE=mcr.microsoft.com/dotnet/framework/runtime:4.8-windowsservercore-ltsc2022"
if not defined FARM_BASE if "%FARM_CHOSEN%"=="ltsc2025" set "FARM_BASE=mcr.microsoft.com/dotnet/framework/runtime:4.8.1-windowsservercore-ltsc2025"
echo image.cmd: build %FARM_BUILD%, base %FARM_BASE%
if "%FARM_BASE:@sha256:=%"=="%FARM_BASE%" echo image.cmd: the base is not pinned: Microsoft renews it each month. Set FARM_BASE to what the next lines show
rem The disk of a build is the engine's: "storage-opts": ["size=120GB"] in daemon.json where it is older than 23.0.
set "DOCKER_BUILDKIT=0"
docker build --isolation=process --memory %FARM_MEMORY_GB%g --build-arg BASE=%FARM_BASE% --build-arg FARM_ARCHIVES --tag farm/toolchain:DIGEST-%FARM_CHOSEN% .
if not "%ERRORLEVEL%"=="0" exit /b 9
docker image inspect --format "image.cmd: used {{index .RepoDigests 0}}" %FARM_BASE%
popd
endlocal & set "FARM_IMAGE=farm/toolchain:DIGEST-%FARM_CHOSEN%"
exit /b 0
