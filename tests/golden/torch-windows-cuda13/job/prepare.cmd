@echo off
rem Toolkit, tools and Python packages below C:\farm; called by build.cmd and by the image's install.cmd.
rem What is there already is not fetched again.
if not exist C:\farm\downloads\ mkdir C:\farm\downloads
rem What a killed installer was unpacking.
for /d %%d in (C:\farm\.cuda-*) do rmdir /s /q "%%d"
set "FARM_STEP=archives"
call :step
set "FARM_NEXT=the last lines of the log name the archive; is C: full? FARM_ARCHIVES may name a folder with the archives"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" fetch_tools.py tools.json C:\farm\tools
if not "%ERRORLEVEL%"=="0" exit /b 9
set "FARM_STEP=python packages"
call :step
if exist C:\farm\venv\4b1172b68de7.ok goto :packages_there
set "FARM_NEXT=a program holds a file in C:\farm\venv open: close Python and terminals that are in it"
if exist C:\farm\venv\ rmdir /s /q C:\farm\venv
if exist C:\farm\venv\ exit /b 9
set "FARM_NEXT=the last lines of the log name the package; is C: full, does pip reach its index?"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" -m venv C:\farm\venv
if not "%ERRORLEVEL%"=="0" exit /b 9
"%FARM_PYTHON%" logged.py C:\farm\venv\Scripts\python.exe -m pip install --disable-pip-version-check --quiet --no-compile --no-deps --require-hashes --only-binary :all: -r requirements.txt
if not "%ERRORLEVEL%"=="0" exit /b 9
copy /y nul C:\farm\venv\4b1172b68de7.ok >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
:packages_there
rem The toolkit out of NVIDIA's wheels. pip puts them into one folder, whose parts are then merged.
set "FARM_STEP=toolkit"
call :step
if exist C:\farm\cuda-13.0-9.13.0\b6e354239c8d.ok exit /b 0
set "FARM_NEXT=a program holds a file in C:\farm\.cuda-wheels or C:\farm\cuda-13.0-9.13.0 open: close programs that are in it"
rem pip replaces no folder that is there: what a killed build left would be taken for whole.
if exist C:\farm\.cuda-wheels\ exit /b 9
if exist C:\farm\cuda-13.0-9.13.0\ rmdir /s /q C:\farm\cuda-13.0-9.13.0
if exist C:\farm\cuda-13.0-9.13.0\ exit /b 9
set "FARM_NEXT=the last lines of the log name the package; is C: full, does pip reach its index?"
"%FARM_PYTHON%" logged.py C:\farm\venv\Scripts\python.exe -m pip install --disable-pip-version-check --quiet --no-compile --no-deps --require-hashes --only-binary :all: --target C:\farm\.cuda-wheels -r toolkit.txt
if not "%ERRORLEVEL%"=="0" exit /b 9
xcopy C:\farm\.cuda-wheels\nvidia\cu13 C:\farm\cuda-13.0-9.13.0 /e /i /q /y >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
xcopy C:\farm\.cuda-wheels\nvidia\cudnn C:\farm\cuda-13.0-9.13.0 /e /i /q /y >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
rmdir /s /q C:\farm\.cuda-wheels
copy /y nul C:\farm\cuda-13.0-9.13.0\b6e354239c8d.ok >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
exit /b 0

:step
echo %DATE% %TIME% farm: step %FARM_STEP%
>> "%FARM_LOG%" echo %DATE% %TIME% farm: step %FARM_STEP%
exit /b 0
