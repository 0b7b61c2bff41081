@echo off
rem Toolkit, tools and Python packages below C:\farm; called by build.cmd and by the image's install.cmd.
rem What is there already is not fetched again.
if not exist C:\farm\downloads\ mkdir C:\farm\downloads
rem What a killed installer was unpacking.
for /d %%d in (C:\farm\.cuda-*) do rmdir /s /q "%%d"
set "FARM_STEP=toolkit"
call :step
set "FARM_NEXT=the last lines of the log name the archive; is C: full, is NVIDIA's server reached? FARM_ARCHIVES may name a folder with the archives"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" install_toolkit.py toolkit.json --prefix C:\farm\cuda-11.4-8.7.0 --cache C:\farm\downloads
if not "%ERRORLEVEL%"=="0" exit /b 9
set "FARM_STEP=archives"
call :step
set "FARM_NEXT=the last lines of the log name the archive; is C: full? FARM_ARCHIVES may name a folder with the archives"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" fetch_tools.py tools.json C:\farm\tools
if not "%ERRORLEVEL%"=="0" exit /b 9
set "FARM_STEP=python packages"
call :step
if exist C:\farm\venv\412f97b4c0b0.ok goto :packages_there
set "FARM_NEXT=a program holds a file in C:\farm\venv open: close Python and terminals that are in it"
if exist C:\farm\venv\ rmdir /s /q C:\farm\venv
if exist C:\farm\venv\ exit /b 9
set "FARM_NEXT=the last lines of the log name the package; is C: full, does pip reach its index?"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" -m venv C:\farm\venv
if not "%ERRORLEVEL%"=="0" exit /b 9
"%FARM_PYTHON%" logged.py C:\farm\venv\Scripts\python.exe -m pip install --disable-pip-version-check --quiet --no-compile --no-deps --require-hashes --only-binary :all: -r requirements.txt
if not "%ERRORLEVEL%"=="0" exit /b 9
copy /y nul C:\farm\venv\412f97b4c0b0.ok >nul
if not "%ERRORLEVEL%"=="0" exit /b 9
:packages_there
exit /b 0

:step
echo %DATE% %TIME% farm: step %FARM_STEP%
>> "%FARM_LOG%" echo %DATE% %TIME% farm: step %FARM_STEP%
exit /b 0
