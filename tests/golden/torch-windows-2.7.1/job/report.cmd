@echo off
rem The first build on a real machine: runs build.cmd and writes farm-report.txt beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build and the names of its files; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
if not exist plan.json pushd "%~dp0"
if not exist plan.json exit /b 2
set "FARM_REPORT=farm-report.txt"
> %FARM_REPORT% echo plan f869f548851740f57a785a887b7258ba7a57d523438ec048073e6749cba25e80
>> %FARM_REPORT% echo torch 2.7.1+cu117.sm35.avx for sm35-avx-py311
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
for %%d in (C:\farm\out\f869f5488517) do dir /s %%d >> %FARM_REPORT% 2>&1
type C:\farm\out\f869f5488517\build.log >> %FARM_REPORT% 2>&1
for %%f in (%FARM_REPORT%) do echo report: %%~ff
exit /b %FARM_EXIT%
