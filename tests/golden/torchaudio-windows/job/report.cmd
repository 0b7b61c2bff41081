@echo off
rem The first build on a real machine: runs build.cmd and writes farm-report.txt beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build and the names of its files; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
if not exist plan.json pushd "%~dp0"
if not exist plan.json exit /b 2
set "FARM_REPORT=farm-report.txt"
> %FARM_REPORT% echo plan ba6bd3ca926aefa4d0660e01d39c46bd40779999dd6d2653a2bab4bd4778e738
>> %FARM_REPORT% echo torchaudio 2.0.2+cu114.sm35.avx for sm35-avx-py39
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
for %%d in (C:\farm\out\ba6bd3ca926a) do dir /s %%d >> %FARM_REPORT% 2>&1
type C:\farm\out\ba6bd3ca926a\build.log >> %FARM_REPORT% 2>&1
for %%f in (%FARM_REPORT%) do echo report: %%~ff
exit /b %FARM_EXIT%
