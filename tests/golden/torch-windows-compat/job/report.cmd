@echo off
rem The first build on a real machine: runs build.cmd and writes farm-report.txt beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build and the names of its files; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
if not exist plan.json pushd "%~dp0"
if not exist plan.json exit /b 2
set "FARM_REPORT=farm-report.txt"
> %FARM_REPORT% echo plan 68a23efcac8a3399be5c756c9567d1bd43202815de7632215eef7436e511bd62
>> %FARM_REPORT% echo torch 2.0.1+cu114.legacy.sse41 for legacy-sse41-py310
ver >> %FARM_REPORT%
>> %FARM_REPORT% echo cores: %NUMBER_OF_PROCESSORS%
"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe" -products * >> %FARM_REPORT% 2>&1
nvidia-smi >> %FARM_REPORT% 2>&1
git --version >> %FARM_REPORT% 2>&1
py -0p >> %FARM_REPORT% 2>&1
>> %FARM_REPORT% echo build.cmd begins: %DATE% %TIME%
cmd /d /c build.cmd
set "FARM_EXIT=%ERRORLEVEL%"
>> %FARM_REPORT% echo build.cmd ended with %FARM_EXIT%
for %%d in (C:\farm\out\68a23efcac8a) do dir /s %%d >> %FARM_REPORT% 2>&1
type C:\farm\out\68a23efcac8a\build.log >> %FARM_REPORT% 2>&1
for %%f in (%FARM_REPORT%) do echo report: %%~ff
exit /b %FARM_EXIT%
