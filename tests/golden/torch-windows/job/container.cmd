@echo off
rem Builds torch 2.0.1+cu114.sm35.avx for sm35-avx-py311 in a Windows container, wheel and log into ..\out. Rendered by farm.
rem Set before, if wanted: FARM_TAG, FARM_MEMORY_GB (default 16), FARM_DISK_GB (default 150), FARM_JOBS, FARM_ARCHIVES (a URL).
rem The build runs in the container's own disk and is copied: bind mounts hang or lose files (docker/for-win#3274).
setlocal EnableExtensions DisableDelayedExpansion
pushd "%~dp0" 2>nul
if not exist container.cmd popd
if not exist container.cmd exit /b 9
if not defined FARM_MEMORY_GB set "FARM_MEMORY_GB=16"
if not defined FARM_DISK_GB set "FARM_DISK_GB=150"
rem A container is told the host's memory, whatever its limit: the number of jobs comes from the limit.
if defined FARM_JOBS goto :image
set /a FARM_JOBS=%FARM_MEMORY_GB% * 10 / 22
if %FARM_JOBS% LSS 1 set "FARM_JOBS=1"
if %FARM_JOBS% GTR %NUMBER_OF_PROCESSORS% set "FARM_JOBS=%NUMBER_OF_PROCESSORS%"
:image
pushd ..\image
if not exist image.cmd exit /b 9
call .\image.cmd
if not "%ERRORLEVEL%"=="0" exit /b %ERRORLEVEL%
popd
set "FARM_NAME=farm-DIGEST"
rem A container of an earlier run has what that compiled: it is taken up again, with the limits that it was made with.
docker container inspect %FARM_NAME% >nul 2>&1
if "%ERRORLEVEL%"=="0" echo container.cmd: goes on in the container %FARM_NAME%; docker rm %FARM_NAME% begins anew& goto :copy
rem Windows engines refuse swap limits, ulimits, pids and cpuset limits.
docker create --isolation=process --name %FARM_NAME% --storage-opt size=%FARM_DISK_GB%GB --memory %FARM_MEMORY_GB%g --cpu-count %NUMBER_OF_PROCESSORS% --env FARM_ARCHIVES %FARM_IMAGE% cmd /c C:\farm\job\build.cmd
if not "%ERRORLEVEL%"=="0" exit /b 9
:copy
rem A container keeps its variables; this file may change.
> jobs.txt echo %FARM_JOBS%
docker cp . %FARM_NAME%:C:\farm\job
set "FARM_EXIT=%ERRORLEVEL%"
del jobs.txt
if not "%FARM_EXIT%"=="0" exit /b 9
docker start --attach %FARM_NAME%
set "FARM_EXIT=%ERRORLEVEL%"
if not exist ..\out\ mkdir ..\out
docker cp %FARM_NAME%:C:\farm\out\DIGEST\. ..\out
if not "%ERRORLEVEL%"=="0" exit /b 9
if not "%FARM_EXIT%"=="0" echo container.cmd: the build ended with %FARM_EXIT%; log: ..\out\build.log; the container %FARM_NAME% is kept& exit /b %FARM_EXIT%
docker rm %FARM_NAME% >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
exit /b 0
