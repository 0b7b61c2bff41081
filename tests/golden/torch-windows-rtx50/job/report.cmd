@echo off
rem The first build on a real machine: runs build.cmd and writes farm-report.txt beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build and the names of its files; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
if not exist plan.json pushd "%~dp0"
if not exist plan.json exit /b 2
set "FARM_REPORT=farm-report.txt"
> %FARM_REPORT% echo plan 9984513c5f7ce945d3254be287246b34a15b38ea6c30d8fd4689f5466e526684
>> %FARM_REPORT% echo torch 2.7.1+cu128.sm120.avx2 for sm120-avx2-py311
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
for %%d in (C:\farm\out\9984513c5f7c) do dir /s %%d >> %FARM_REPORT% 2>&1
type C:\farm\out\9984513c5f7c\build.log >> %FARM_REPORT% 2>&1
for %%f in (%FARM_REPORT%) do echo report: %%~ff
exit /b %FARM_EXIT%
