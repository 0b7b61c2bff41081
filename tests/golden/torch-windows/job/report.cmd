@echo off
rem The first build on a real machine: runs build.cmd and makes farm-report.zip beside it, to be sent back. Rendered by farm.
rem It holds the versions of this machine's tools, the log of the build, the names of its files and what CMake found. Values
rem of your own variables, passwords in URLs, your name and the machine's are taken out; read it before you send it.
setlocal EnableExtensions DisableDelayedExpansion
pushd "%~dp0" 2>nul
if not exist plan.json popd
if not exist plan.json echo report.cmd is not beside plan.json: copy the whole folder job& exit /b 9
set "FARM_REPORT=farm-report.txt"
if exist farm-report.zip del /f /q farm-report.zip
if exist %FARM_REPORT% del /f /q %FARM_REPORT%
if exist %FARM_REPORT% goto :unwritable
> %FARM_REPORT% echo plan DIGEST
if not exist %FARM_REPORT% goto :unwritable
if defined FARM_PYTHON set "FARM_PYTHON=%FARM_PYTHON:"=%"
>> %FARM_REPORT% echo torch 2.0.1+cu114.sm35.avx for sm35-avx-py311
ver >> %FARM_REPORT%
>> %FARM_REPORT% echo cores: %NUMBER_OF_PROCESSORS%
"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe" -products * >> %FARM_REPORT% 2>&1
nvidia-smi.exe >> %FARM_REPORT% 2>&1
git.exe --version >> %FARM_REPORT% 2>&1
py.exe -0p >> %FARM_REPORT% 2>&1
>> %FARM_REPORT% echo build.cmd begins: %DATE% %TIME%
"%ComSpec%" /d /c .\build.cmd
set "FARM_EXIT=%ERRORLEVEL%"
>> %FARM_REPORT% echo build.cmd ended with %FARM_EXIT%
for %%d in (C:\farm\out\DIGEST) do dir /s %%d >> %FARM_REPORT% 2>&1
rem Python makes the zip: that of the build, or the machine's.
if not defined FARM_PYTHON if exist C:\farm\venv\Scripts\python.exe set "FARM_PYTHON=C:\farm\venv\Scripts\python.exe"
if not defined FARM_PYTHON for %%p in (py.exe python.exe) do if not defined FARM_PYTHON set "FARM_PYTHON=%%~$PATH:p"
set "FARM_CMAKE=C:\farm\src\build\CMakeFiles"
if defined FARM_PYTHON "%FARM_PYTHON%" report.py farm-report.zip farm-report.txt=%FARM_REPORT% build.log=C:\farm\out\DIGEST\build.log plan.json=plan.json CMakeError.log=%FARM_CMAKE%\CMakeError.log CMakeOutput.log=%FARM_CMAKE%\CMakeOutput.log CMakeConfigureLog.yaml=%FARM_CMAKE%\CMakeConfigureLog.yaml CMakeCache.txt=C:\farm\src\build\CMakeCache.txt
if not exist farm-report.zip goto :text
del %FARM_REPORT%
for %%f in (farm-report.zip) do echo report: %%~ff
goto :end
:text
rem Without Python nothing was built: the log ends where Python was looked for. PowerShell takes names and passwords out; what it
rem cannot read is not kept.
if exist C:\farm\out\DIGEST\build.log type C:\farm\out\DIGEST\build.log >> %FARM_REPORT%
powershell -NoProfile -Command "$ErrorActionPreference = 'Stop'; $text = (Get-Content -Raw $env:FARM_REPORT) -replace '(?<=://)[^\s/@]+@', ''; foreach ($name in $env:USERNAME, $env:COMPUTERNAME) { if ($name) { $text = $text -replace [regex]::Escape($name), '[name]' } }; Set-Content -NoNewline $env:FARM_REPORT $text"
if not "%ERRORLEVEL%"=="0" del %FARM_REPORT%
if not exist %FARM_REPORT% echo report.cmd: neither Python nor PowerShell could take names and passwords out: no report was kept; send the lines above
for %%f in (%FARM_REPORT%) do if exist %%f echo report: %%~ff (no Python to make farm-report.zip)
goto :end
:unwritable
set "FARM_EXIT=9"
echo report.cmd: farm-report.txt cannot be written: close it where it is open, or copy the folder job to a disk of this machine that has room
:end
rem Started by a double click, its window would close.
if defined CMDCMDLINE set "FARM_LINE=%CMDCMDLINE:"=%"
if defined CMDCMDLINE if not "%FARM_LINE:report.cmd=%"=="%FARM_LINE%" pause
exit /b %FARM_EXIT%
