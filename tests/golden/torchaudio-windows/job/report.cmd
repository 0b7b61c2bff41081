@echo off
rem The first build on a real machine: runs build.cmd and writes farm-report.txt beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build and the names of its files; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
if not exist plan.json pushd "%~dp0"
if not exist plan.json exit /b 2
set "FARM_REPORT=farm-report.txt"
> %FARM_REPORT% echo plan a1fca106b2f62d6ad0bb72cf3f2dc13e4063e84106342b575b8dc58bf5ce20ed
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
for %%d in (C:\farm\out\a1fca106b2f6) do dir /s %%d >> %FARM_REPORT% 2>&1
type C:\farm\out\a1fca106b2f6\build.log >> %FARM_REPORT% 2>&1
for %%f in (%FARM_REPORT%) do echo report: %%~ff
exit /b %FARM_EXIT%
