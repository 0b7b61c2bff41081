@echo off
rem Builds torch 2.0.1+cu114.sm35.avx for sm35-avx-py311. Rendered by farm from plan DIGEST.
rem Needs 64-bit Windows 10 1809 or newer, Visual Studio with the C++ toolset 14.29, Python 3.11 and Git; no administrator.
rem Programs write into the log by logged.py, which says why; cmd itself opens it for itself alone, for single lines.
rem This folder may stand anywhere. All else lies below C:\farm, which may be a junction to another drive.
rem Set before, if wanted: FARM_PYTHON (python.exe), FARM_JOBS (parallel compilers), FARM_ARCHIVES (a folder or URL that is
rem asked for each download first), FARM_CONFIGURE (stop when CMake has configured).
setlocal EnableExtensions DisableDelayedExpansion
set "ERRORLEVEL="
set "FARM_EXIT=0"
set "FARM_CODE=9"
set "FARM_LOG=nul"
set "FARM_STEP=folders"
set "FARM_SAID="
set "FARM_CODEPAGE="
for /f "tokens=2 delims=:." %%c in ('chcp') do set "FARM_CODEPAGE=%%c"
set "FARM_NEXT=cmd finds no programs: PATH is longer than 8191 characters, or lacks %SystemRoot%\System32. Shorten it, or in this window: set PATH=%SystemRoot%\System32, and FARM_PYTHON to python.exe"
if not defined FARM_CODEPAGE set "FARM_CODE=3"
if not defined FARM_CODEPAGE goto :failed
chcp 65001 >nul
rem pushd gives a folder of the network a drive letter, which cd cannot. This folder goes before the current one: that may
rem be the kit of another plan.
set "FARM_NEXT=build.cmd is not beside plan.json: copy the whole folder job"
pushd "%~dp0" 2>nul
if not exist plan.json popd
if not exist plan.json goto :failed
set "FARM_NEXT=the path of this folder is too long for Windows: copy the folder to a shorter one, such as C:\job"
if not "%CD:~180%"=="" goto :failed
set "FARM_NEXT=is C: writable and not full? if C:\farm is a junction, is the folder there to which it leads?"
rem Windows lets every user write into a new folder of C:\: this one is for its user, SYSTEM and administrators. Where the
rem rights cannot be granted, none are taken away.
if not exist C:\farm\ mkdir C:\farm 2>nul && icacls C:\farm /grant "%USERDOMAIN%\%USERNAME%:(OI)(CI)F" "*S-1-5-18:(OI)(CI)F" "*S-1-5-32-544:(OI)(CI)F" >nul 2>nul && icacls C:\farm /inheritance:r >nul 2>nul
rem One that was there may be another user's, who could have put programs into it.
set "FARM_NEXT=C:\farm belongs to another user of this machine, who could have put programs into it: remove it, or move it away"
powershell -NoProfile -NonInteractive -Command "$me = [Security.Principal.WindowsIdentity]::GetCurrent().User.Value; $owner = (Get-Acl C:\farm).GetOwner([Security.Principal.SecurityIdentifier]).Value; if ($owner -notin $me, 'S-1-5-18', 'S-1-5-32-544') { exit 77 }" >nul 2>nul
if "%ERRORLEVEL%"=="77" goto :failed
set "FARM_NEXT=is C: writable and not full? if C:\farm is a junction, is the folder there to which it leads?"
for %%d in (C:\farm C:\farm\t C:\farm\downloads C:\farm\out C:\farm\out\DIGEST) do if not exist "%%d\" mkdir "%%d"
set "FARM_OUT=C:\farm\out\DIGEST"
if not exist "%FARM_OUT%\" goto :failed
set "FARM_NEXT=another build runs on this machine: wait for its end, or end it; one at a time"
rem logged.py has this file while a program of a build runs, and nobody can remove it then.
set "FARM_BUSY=C:\farm\busy"
if exist %FARM_BUSY% del /f /q %FARM_BUSY% 2>nul
if exist %FARM_BUSY% goto :failed
set "FARM_NEXT=is C: writable and not full?"
copy /y nul "%FARM_OUT%\build.log" >nul
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_LOG=%FARM_OUT%\build.log"
for %%k in (.) do if /i "%%~fk"=="C:\farm\job" goto :inplace
set "FARM_NEXT=a program or another build has C:\farm\job open: one build at a time on one machine"
call :gone C:\farm\job
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_NEXT=is C: writable and not full?"
mkdir C:\farm\job
if not exist C:\farm\job\ goto :failed
copy /y /b * C:\farm\job\ >nul
if not "%ERRORLEVEL%"=="0" goto :failed
:inplace
cd /d C:\farm\job
for %%k in (.) do if /i not "%%~fk"=="C:\farm\job" goto :failed
rem What a killed build left; what a program still holds stays.
rmdir /s /q C:\farm\t 2>nul
rem A folder that no build had before, for what programs print: cmd starts none whose file is held, and keeps the exit
rem code of the last one.
set "FARM_ANSWERS=C:\farm\t\answers-%RANDOM%%RANDOM%"
mkdir %FARM_ANSWERS%
if not exist %FARM_ANSWERS%\ goto :failed
rem ci/farm.yaml's archives, where this machine has no setting of its own.
if not defined FARM_ARCHIVES if exist archives.txt for /f "usebackq delims=" %%a in ("archives.txt") do set "FARM_ARCHIVES=%%a"
if defined FARM_ARCHIVES set "FARM_ARCHIVES=%FARM_ARCHIVES:"=%"
set "FARM_TEXT=torch 2.0.1+cu114.sm35.avx for sm35-avx-py311, plan DIGEST; log: %FARM_LOG%"
call :say

rem --- tools of this machine, found before PATH is made anew ----------------------------------------------------
set "FARM_STEP=tools"
set "FARM_CODE=3"
call :step
set "FARM_GIT="
for %%g in (git.exe) do set "FARM_GIT=%%~$PATH:g"
if not defined FARM_GIT if exist C:\farm\git\cmd\git.exe set "FARM_GIT=C:\farm\git\cmd\git.exe"
if not defined FARM_GIT if exist "%ProgramFiles%\Git\cmd\git.exe" set "FARM_GIT=%ProgramFiles%\Git\cmd\git.exe"
set "FARM_NEXT=Git is missing: winget install --id Git.Git, or unpack https://github.com/git-for-windows/git/releases/download/v2.45.2.windows.1/MinGit-2.45.2-64-bit.zip (sha256 SHA256) into C:\farm\git"
if not defined FARM_GIT goto :failed
for %%v in (PYTHONHOME PYTHONPATH PYTHONSAFEPATH PYTHONOPTIMIZE PYTHONWARNINGS PYTHONSTARTUP PYTHONINSPECT PYTHONDEVMODE) do set "%%v="
rem It writes its place to a file, and a user's name may hold any letter.
set "PYTHONUTF8=1"
if defined FARM_PYTHON goto :python
if exist C:\farm\python\python.exe set "FARM_PYTHON=C:\farm\python\python.exe"
if defined FARM_PYTHON goto :python
py.exe -3.11 -c "import sys; print(sys.executable)" > %FARM_ANSWERS%\python.txt 2>nul
if "%ERRORLEVEL%"=="0" for /f "usebackq delims=" %%p in ("%FARM_ANSWERS%\python.txt") do set "FARM_PYTHON=%%p"
if defined FARM_PYTHON goto :python
for %%p in (python.exe) do set "FARM_PYTHON=%%~$PATH:p"
:python
set "FARM_GET=https://www.python.org/ftp/python/3.11.9/python-3.11.9-amd64.exe (sha256 SHA256), then python-3.11.9-amd64.exe /passive; or winget install --id Python.Python.3.11; or set FARM_PYTHON to its python.exe"
set "FARM_NEXT=Python 3.11 is missing: %FARM_GET%"
if not defined FARM_PYTHON goto :failed
rem Given with quotes, as it would be typed as a command.
set "FARM_PYTHON=%FARM_PYTHON:"=%"
set "FARM_NEXT=FARM_PYTHON, py or PATH leads to another Python: 64-bit 3.11 is needed"
"%FARM_PYTHON%" -c "import importlib.util as u, sys; print(sys.executable); sys.exit(sys.version_info[:2] != (3, 11) or sys.maxsize < 2**32 or 2 * (not u.find_spec('ensurepip')))" > %FARM_ANSWERS%\place.txt 2> %FARM_ANSWERS%\found.txt
set "FARM_EXIT=%ERRORLEVEL%"
type %FARM_ANSWERS%\found.txt >> "%FARM_LOG%"
rem 9009: there is no such program, or the stub of Microsoft's Store, which stands on PATH where no Python is installed.
if "%FARM_EXIT%"=="9009" set "FARM_NEXT=%FARM_PYTHON% is no Python (the Microsoft Store's stub is none): %FARM_GET%"
if "%FARM_EXIT%"=="2" set "FARM_NEXT=%FARM_PYTHON% makes no virtual environments (the embeddable Python makes none): %FARM_GET%"
if not "%FARM_EXIT%"=="0" goto :failed
rem Its place: it may have been given as a name on PATH, which is made anew.
for /f "usebackq delims=" %%p in ("%FARM_ANSWERS%\place.txt") do if exist "%%p" set "FARM_PYTHON=%%p"

rem --- a clean environment: nothing of other compilers, toolkits and builds --------------------------------------
for %%v in (BLAS CC CFLAGS CL _CL_ CPPFLAGS CXX CXXFLAGS INCLUDE LDFLAGS LIB LIBPATH LINK _LINK_ MAX_JOBS MAKEFLAGS NVCC_PREPEND_FLAGS NVCC_APPEND_FLAGS WERROR DISTUTILS_USE_SDK MSSdk GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE) do set "%%v="
call :clear 2>nul
rem pip.ini may ask for it, which no virtual environment does.
set "PIP_USER=0"
set "PATH=%SystemRoot%\System32;%SystemRoot%;%SystemRoot%\System32\Wbem;%SystemRoot%\System32\WindowsPowerShell\v1.0"
rem The user's own folder may have blanks or letters that nvcc does not take.
set "TEMP=C:\farm\t"
set "TMP=C:\farm\t"
call :stop

rem --- Visual Studio: the pinned toolset, in whichever product has it ---------------------------------------------
set "FARM_STEP=visual studio"
call :step
set "FARM_VS="
set "FARM_OWN="
set "FARM_VSWHERE=%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe"
rem Quotes around each path alone: it may hold any letter.
set FARM_SETUP="%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\setup.exe" modify --passive --norestart
set "FARM_NEXT=Visual Studio is missing: install Build Tools 2019: https://download.visualstudio.microsoft.com/download/pr/173680e6-f352-4b2b-975f-96e006bf9720/SHA256/vs_BuildTools.exe (sha256 SHA256), then vs_BuildTools.exe --passive --wait --norestart --add Microsoft.VisualStudio.Workload.VCTools --add Microsoft.Component.MSBuild --add Microsoft.VisualStudio.Component.VC.Tools.x86.x64 --add Microsoft.VisualStudio.Component.VC.Redist.14.Latest --add Microsoft.VisualStudio.Component.Windows10SDK.19041"
if not exist "%FARM_VSWHERE%" goto :failed
"%FARM_VSWHERE%" -utf8 -nologo -products * -property installationPath > %FARM_ANSWERS%\vs.txt
if not "%ERRORLEVEL%"=="0" goto :failed
rem What an uninstalled toolset leaves is a folder without a compiler; other products with that installer have no VC.
set "FARM_ANY="
for /f "usebackq delims=" %%i in ("%FARM_ANSWERS%\vs.txt") do if exist "%%i\VC\Tools\MSVC\" set "FARM_ANY=%%i"
for /f "usebackq delims=" %%i in ("%FARM_ANSWERS%\vs.txt") do call :toolset "%%i"
if not defined FARM_ANY goto :failed
set FARM_NEXT=no Visual Studio here has the C++ toolset 14.29 with cl.exe and vcvarsall.bat; this adds it: %FARM_SETUP% --installPath "%FARM_ANY%" --add Microsoft.VisualStudio.Component.VC.14.29.16.11.x86.x64
if not defined FARM_VS goto :failed
cd /d "%FARM_VS%\VC\Auxiliary\Build"
set "FARM_NEXT=vcvarsall.bat of %FARM_VS% failed: repair the installation of Visual Studio"
set "VSCMD_SKIP_SENDTELEMETRY=1"
rem cl.exe in English, where it has that language: Ninja and sccache read its list of included files.
set "VSLANG=1033"
rem Into a file of its own: what it starts (telemetry) may go on, and holds the file then.
call .\vcvarsall.bat x64 -vcvars_ver=14.29 > %FARM_ANSWERS%\vcvars.txt 2>&1
set "FARM_EXIT=%ERRORLEVEL%"
type %FARM_ANSWERS%\vcvars.txt >> "%FARM_LOG%"
if not "%FARM_EXIT%"=="0" goto :failed
cd /d C:\farm\job
for %%k in (.) do if /i not "%%~fk"=="C:\farm\job" goto :failed
set "FARM_NEXT=vcvarsall.bat set up another toolset than 14.29: repair the installation of Visual Studio"
if not defined VCToolsVersion goto :failed
if not "%VCToolsVersion:~0,5%"=="14.29" goto :failed
set "FARM_CL="
for %%c in (cl.exe) do set "FARM_CL=%%~$PATH:c"
set "FARM_NEXT=vcvarsall.bat put no cl.exe on PATH: repair the installation of Visual Studio"
if not defined FARM_CL goto :failed
rem CUDA code does not compile with an older build of this toolset: 14.29.30037 of Visual Studio 16.10 breaks each .cu file of C++14 (microsoft/STL issue 2020); 30133 is 16.11's.
set FARM_NEXT=C++ toolset %VCToolsVersion% cannot compile CUDA code, 14.29.30133 or newer can; this updates it: "%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\setup.exe" update --passive --norestart --installPath "%FARM_VS%"
for /f "tokens=3 delims=." %%b in ("%VCToolsVersion%") do if %%b LSS 30133 goto :failed

rem --- the rest of the machine, before the first download -----------------------------------------------------------
set "FARM_STEP=checks"
set "FARM_NEXT=the lines above say what is missing, and how to get it"
call :step
set "FARM_SHOW=all"
set "FARM_SDK=Microsoft.VisualStudio.Component.Windows10SDK.19041"
set "FARM_TOOLSET=Microsoft.VisualStudio.Component.VC.14.29.16.11.x86.x64"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" check_machine.py plan.json 20.0
set "FARM_EXIT=%ERRORLEVEL%"
set "FARM_SHOW="
if "%FARM_EXIT%"=="9" set "FARM_CODE=9"
if not "%FARM_EXIT%"=="0" goto :failed
set "FARM_CODE=9"
call .\prepare.cmd
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_CODE=3"

rem --- one CUDA toolkit, whatever else is installed ---------------------------------------------------------------
set "FARM_STEP=toolkit"
set "FARM_NEXT=C:\farm\cuda-11.4-8.7.0 is not CUDA 11.4: remove the folder and run this again"
"C:\farm\cuda-11.4-8.7.0\bin\nvcc.exe" --version > %FARM_ANSWERS%\nvcc.txt
if not "%ERRORLEVEL%"=="0" goto :failed
find "release 11.4," %FARM_ANSWERS%\nvcc.txt >nul
if not "%ERRORLEVEL%"=="0" goto :failed

rem --- what the compilers see -------------------------------------------------------------------------------------
set "PATH=C:\farm\venv\Scripts;C:\farm\cuda-11.4-8.7.0\bin;%PATH%"
rem nvcc takes the first cl.exe of PATH where it is not told one; CMake tells it this one.
set "FARM_CODE=3"
set "FARM_NEXT=another cl.exe than %FARM_CL% is first on PATH, below C:\farm\venv or C:\farm\cuda-11.4-8.7.0: remove it"
set "FARM_FIRST="
for %%c in (cl.exe) do set "FARM_FIRST=%%~$PATH:c"
if /i not "%FARM_FIRST%"=="%FARM_CL%" goto :failed
set "CUDAHOSTCXX=%FARM_CL:\=/%"
for %%g in ("%FARM_GIT%") do set "PATH=%PATH%;%%~dpg"
set "BLAS=MKL"
set "BUILD_SPLIT_CUDA=1"
set "BUILD_TEST=0"
set "CC=cl"
set "CFLAGS=/arch:AVX"
set "CMAKE_CXX_COMPILER_LAUNCHER=C:/farm/tools/sccache/sccache.exe"
set "CMAKE_C_COMPILER_LAUNCHER=C:/farm/tools/sccache/sccache.exe"
set "CMAKE_GENERATOR=Ninja"
set "CMAKE_INCLUDE_PATH=C:/farm/venv/Library/include"
set "CMAKE_LIBRARY_PATH=C:/farm/venv/Library/lib"
set "CMAKE_PROJECT_INCLUDE=C:/farm/job/tiers.cmake"
set "CUDA_HOME=C:/farm/cuda-11.4-8.7.0"
set "CUDA_PATH=C:/farm/cuda-11.4-8.7.0"
set "CUDNN_ROOT=C:/farm/cuda-11.4-8.7.0"
set "CXX=cl"
set "CXXFLAGS=/arch:AVX"
set "DISTUTILS_USE_SDK=1"
set "NVCC_APPEND_FLAGS=--use-local-env"
set "NVTOOLSEXT_PATH=C:/farm/cuda-11.4-8.7.0/NvToolsExt"
set "PYTORCH_BUILD_NUMBER=1"
set "PYTORCH_BUILD_VERSION=2.0.1+cu114.sm35.avx"
set "SCCACHE_DIR=C:/farm/cache"
set "SCCACHE_IDLE_TIMEOUT=0"
set "SCCACHE_IGNORE_SERVER_IO_ERROR=1"
set "TORCH_CUDA_ARCH_LIST=3.5"
set "TORCH_NVCC_FLAGS=-Xfatbin -compress-all"
set "USE_CUDA=1"
set "USE_CUDNN=1"
set "USE_CUFILE=0"
set "USE_CUSPARSELT=0"
set "USE_DISTRIBUTED=0"
set "USE_FBGEMM=0"
set "USE_FLASH_ATTENTION=0"
set "USE_GLOO=0"
set "USE_ITT=1"
set "USE_KINETO=0"
set "USE_MAGMA=0"
set "USE_MEM_EFF_ATTENTION=0"
set "USE_MKLDNN=1"
set "USE_NCCL=0"
set "USE_NNPACK=0"
set "USE_NUMA=0"
set "USE_PYTORCH_QNNPACK=0"
set "USE_TENSORPIPE=0"
set "USE_XNNPACK=1"
set "SOURCE_DATE_EPOCH=315532800"
set "PYTHONDONTWRITEBYTECODE=1"
set "FARM_STEP=jobs"
set "FARM_NEXT=set FARM_JOBS to the number of parallel compilers"
call :step
if exist jobs.txt for /f "usebackq delims=" %%j in ("jobs.txt") do set "FARM_JOBS=%%j"
if defined FARM_JOBS goto :jobs
C:\farm\venv\Scripts\python.exe count_jobs.py 2.2 > %FARM_ANSWERS%\jobs.txt
if not "%ERRORLEVEL%"=="0" goto :failed
for /f "usebackq delims=" %%j in ("%FARM_ANSWERS%\jobs.txt") do set "FARM_JOBS=%%j"
if not defined FARM_JOBS goto :failed
:jobs
set "FARM_JOBS=%FARM_JOBS:"=%"
for /f "delims=0123456789" %%c in ("%FARM_JOBS%") do goto :failed
if %FARM_JOBS% LSS 1 goto :failed
set "MAX_JOBS=%FARM_JOBS%"
set "CMAKE_BUILD_PARALLEL_LEVEL=%FARM_JOBS%"
set /a FARM_MINUTES=960 / FARM_JOBS >nul
set "FARM_TEXT=%MAX_JOBS% parallel compilers, estimated %FARM_MINUTES% minutes (by 960 CPU minutes on Linux); in PowerShell, Get-Content -Wait -Tail 20 %FARM_LOG% follows them"
call :say

rem --- source -----------------------------------------------------------------------------------------------------
set "FARM_STEP=source"
set "FARM_CODE=9"
set "FARM_NEXT=can this machine reach https://github.com/pytorch/pytorch.git? is C: full?"
set "FARM_OPTIONS=-c core.longpaths=true -c core.fsmonitor=false -c core.autocrlf=false -c core.symlinks=false -c safe.directory=*"
set "GIT_TERMINAL_PROMPT=0"
call :step
rem In a container FARM_SOURCES is a volume, which outlives it: the clone of an earlier one.
set "FARM_PACKED=%FARM_SOURCES%\e9ebda29d87ce0916ab08c06ab26fd3766a870e5.tar"
if defined FARM_SOURCES if not exist C:\farm\src\ if exist "%FARM_PACKED%" mkdir C:\farm\src
if defined FARM_SOURCES if not exist C:\farm\src\.git if exist "%FARM_PACKED%" "%FARM_PYTHON%" logged.py tar.exe -xf "%FARM_PACKED%" -C C:\farm\src
set "FARM_HEAD="
if exist C:\farm\src\.git "%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src rev-parse HEAD > %FARM_ANSWERS%\head.txt 2>nul
if exist C:\farm\src\.git for /f "usebackq delims=" %%h in ("%FARM_ANSWERS%\head.txt") do set "FARM_HEAD=%%h"
rem The tree of this plan and this compiler: what is compiled in it is kept, and Ninja goes on.
set "FARM_TREE=C:\farm\src\.git\DIGEST-%VCToolsVersion%.tree"
set "FARM_KEPT="
if "%FARM_HEAD%"=="e9ebda29d87ce0916ab08c06ab26fd3766a870e5" if exist "%FARM_TREE%" set "FARM_KEPT=1"
if defined FARM_KEPT if exist C:\farm\src\build\ set "FARM_TEXT=what is compiled in C:\farm\src\build is kept; remove that folder to compile all of it again"
if defined FARM_KEPT if exist C:\farm\src\build\ call :say
if defined FARM_KEPT goto :kept
rem farm.ok stands for a whole clone: one that was interrupted has the right HEAD and lacks submodules.
if "%FARM_HEAD%"=="e9ebda29d87ce0916ab08c06ab26fd3766a870e5" if exist C:\farm\src\.git\farm.ok goto :clean
:clone
set "FARM_NEXT=a program holds a file in C:\farm\src open: close editors, terminals and virus scanners that are in it"
call :gone C:\farm\src
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_NEXT=can this machine reach https://github.com/pytorch/pytorch.git? is C: full?"
"%FARM_PYTHON%" logged.py "%FARM_GIT%" %FARM_OPTIONS% clone --quiet --depth 1 --branch v2.0.1 --recurse-submodules --shallow-submodules -- "https://github.com/pytorch/pytorch.git" C:\farm\src
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_HEAD="
"%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src rev-parse HEAD > %FARM_ANSWERS%\head.txt 2>nul
if not "%ERRORLEVEL%"=="0" goto :failed
for /f "usebackq delims=" %%h in ("%FARM_ANSWERS%\head.txt") do set "FARM_HEAD=%%h"
set "FARM_CODE=5"
set "FARM_NEXT=tag v2.0.1 is another commit than the catalogue says: e9ebda29d87ce0916ab08c06ab26fd3766a870e5"
if not "%FARM_HEAD%"=="e9ebda29d87ce0916ab08c06ab26fd3766a870e5" goto :failed
set "FARM_CODE=9"
copy /y nul C:\farm\src\.git\farm.ok >nul
if not "%ERRORLEVEL%"=="0" goto :failed
rem One that cannot be packed is only cloned again.
if not defined FARM_SOURCES goto :paths
"%FARM_PYTHON%" logged.py tar.exe -cf "%FARM_PACKED%.new" -C C:\farm\src .
if "%ERRORLEVEL%"=="0" move /y "%FARM_PACKED%.new" "%FARM_PACKED%" >nul
goto :paths
:clean
rem A tree of another plan: CMake would not run again with what that left, and keep its settings. One that git cannot
rem clean (a killed git leaves its lock) is cloned again.
set "FARM_NEXT=a program holds a file in C:\farm\src open: close editors, terminals and virus scanners that are in it"
del /f /q C:\farm\src\.git\*.tree 2>nul
call :gone C:\farm\src\build
if not "%ERRORLEVEL%"=="0" goto :failed
"%FARM_PYTHON%" logged.py "%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src reset --quiet --hard
if not "%ERRORLEVEL%"=="0" goto :clone
"%FARM_PYTHON%" logged.py "%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src clean -ffdxq
if not "%ERRORLEVEL%"=="0" goto :clone
rem A submodule that lost its files is none for foreach. Nothing is fetched where the commits are there.
"%FARM_PYTHON%" logged.py "%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src submodule --quiet update --init --recursive --force --depth 1
if not "%ERRORLEVEL%"=="0" goto :clone
"%FARM_PYTHON%" logged.py "%FARM_GIT%" %FARM_OPTIONS% -C C:\farm\src submodule --quiet foreach --recursive "git reset --quiet --hard && git clean -ffdxq"
if not "%ERRORLEVEL%"=="0" goto :clone
:paths
set "FARM_CODE=5"
set "FARM_NEXT=the last lines of the log name paths that cl.exe, nvcc and CMake cannot open: shorten them in the source"
"%FARM_PYTHON%" logged.py "%FARM_PYTHON%" long_paths.py C:\farm\src
if not "%ERRORLEVEL%"=="0" goto :failed
set "FARM_CODE=9"
set "FARM_NEXT=is C: writable and not full?"
copy /y nul "%FARM_TREE%" >nul
if not "%ERRORLEVEL%"=="0" goto :failed
:kept
set "FARM_CODE=5"

rem --- build ------------------------------------------------------------------------------------------------------
set "FARM_STEP=build"
set "FARM_NEXT=the first line with FAILED: or error in the log is the cause"
call :step
call :gone "%FARM_OUT%\wheel"
if not "%ERRORLEVEL%"=="0" goto :failed
call :gone "%FARM_OUT%\lib"
if not "%ERRORLEVEL%"=="0" goto :failed
mkdir "%FARM_OUT%\wheel" "%FARM_OUT%\lib"
if not exist "%FARM_OUT%\wheel\" goto :failed
if not exist "%FARM_OUT%\lib\" goto :failed
cd /d C:\farm\src
for %%k in (.) do if /i not "%%~fk"=="C:\farm\src" goto :failed
if not defined FARM_CONFIGURE goto :wheel
"%FARM_PYTHON%" C:\farm\job\logged.py C:\farm\venv\Scripts\python.exe setup.py build --cmake-only
set "FARM_EXIT=%ERRORLEVEL%"
if not "%FARM_EXIT%"=="0" goto :failed
call :stop
set "FARM_TEXT=configured, and not built (FARM_CONFIGURE): C:\farm\src\build\build.ninja"
call :say
cd /d C:\
popd
chcp %FARM_CODEPAGE% >nul
exit /b 0
:wheel
set "FARM_SHOW=ninja"
"%FARM_PYTHON%" C:\farm\job\logged.py C:\farm\venv\Scripts\python.exe -m build --wheel --no-isolation --skip-dependency-check --outdir "%FARM_OUT%\wheel" .
set "FARM_EXIT=%ERRORLEVEL%"
if "%FARM_EXIT%"=="75" set "FARM_CODE=75"
if "%FARM_EXIT%"=="75" set "FARM_NEXT=the time of FARM_MINUTES is over: run this again, and the build goes on with what is compiled"
rem By number: cl.exe and link.exe may speak another language. C1076 and C3859 are of precompiled headers.
if not "%FARM_EXIT%"=="0" for %%e in (C1060 C1002 C1076 C3859 LNK1102) do call :memory %%e
if not "%FARM_EXIT%"=="0" goto :failed
cd /d C:\farm\job
for %%k in (.) do if /i not "%%~fk"=="C:\farm\job" goto :failed
set "FARM_WHEEL="
set "FARM_NEXT=the build ended well and left no wheel, or more than one, in %FARM_OUT%\wheel"
set "FARM_COUNT=0"
for %%w in (%FARM_OUT%\wheel\*.whl) do set /a FARM_COUNT+=1 >nul
for %%w in (%FARM_OUT%\wheel\*.whl) do set "FARM_WHEEL=%%w"
if not "%FARM_COUNT%"=="1" goto :failed

rem --- libraries: what `farm repair` may put into the wheel -------------------------------------------------------
set "FARM_STEP=libraries"
set "FARM_SHORT="
set "FARM_CODE=9"
set "FARM_NEXT=is C: full?"
call :step
for %%f in (C:\farm\cuda-11.4-8.7.0\bin C:\farm\cuda-11.4-8.7.0\bin\x64 C:\farm\cuda-11.4-8.7.0\extras\CUPTI\lib64 C:\farm\cuda-11.4-8.7.0\NvToolsExt\bin\x64 C:\farm\tools\zlib C:\farm\tools\openblas\bin C:\farm\venv\Library\bin) do call :take %%f
if defined FARM_SHORT goto :failed
call :stop
set "FARM_TEXT=the official wheel has, and this one lacks: torch.distributed, gloo, kineto, FBGEMM, memory-efficient attention, MAGMA"
call :say
set "FARM_TEXT=done: %FARM_WHEEL%; next: farm repair "%FARM_WHEEL%" --lib-dir "%FARM_OUT%\lib" --plan C:\farm\job\plan.json"
call :say
cd /d C:\
popd
chcp %FARM_CODEPAGE% >nul
exit /b 0

:failed
if "%FARM_EXIT%"=="0" set "FARM_EXIT=%ERRORLEVEL%"
if "%FARM_EXIT%"=="0" set "FARM_EXIT=%FARM_CODE%"
rem The last line of dir says how much is free, in any language; compilers name a full disk in many ways.
set "FARM_FREE=full, or not readable"
for /f "tokens=*" %%l in ('dir C:\farm') do set "FARM_FREE=%%l"
set "FARM_TEXT=step %FARM_STEP% FAILED (exit code %FARM_EXIT%); log: %FARM_LOG%; C:\farm: %FARM_FREE%"
call :say
rem Before that step another build may run, whose server it would be.
if "%FARM_STEP%"=="folders" goto :next
call :stop
if not defined FARM_PYTHON goto :next
rem 75: so little room that no step could tell its own reason.
"%FARM_PYTHON%" -c "import shutil, sys; sys.exit(75 * (shutil.disk_usage('C:/farm').free < 2**28))" 2>nul
if "%ERRORLEVEL%"=="75" goto :full
rem The tool's own first error, and its cause and cure where they are known. The lines of these steps are shown already.
if "%FARM_CODE%"=="75" goto :next
if "%FARM_STEP%"=="tools" goto :next
if "%FARM_STEP%"=="checks" goto :next
if exist %FARM_ANSWERS%\next.txt del /f /q %FARM_ANSWERS%\next.txt
"%FARM_PYTHON%" C:\farm\job\causes.py "%FARM_LOG%" %FARM_ANSWERS%\next.txt 2>nul
if defined FARM_SAID goto :next
if exist %FARM_ANSWERS%\next.txt for /f "usebackq delims=" %%n in ("%FARM_ANSWERS%\next.txt") do set "FARM_NEXT=%%n"
goto :next
:full
set "FARM_CODE=9"
set "FARM_NEXT=make room: less than 256 MB are free on the disk of C:\farm; then run this again"
:next
set "FARM_TEXT=next: %FARM_NEXT%"
call :say
cd /d C:\
popd
chcp %FARM_CODEPAGE% >nul
exit /b %FARM_CODE%

:step
set "FARM_TEXT=step %FARM_STEP%"
:say
rem Delayed expansion shows any text as it is: what stands in it is not read as a command.
setlocal EnableDelayedExpansion
echo !DATE! !TIME! farm: !FARM_TEXT!
>> "!FARM_LOG!" echo !DATE! !TIME! farm: !FARM_TEXT!
endlocal
exit /b 0

:take
rem Copies the DLLs of a folder; FARM_SHORT says that one could not be copied.
if not exist %1\*.dll exit /b 0
copy /y /b %1\*.dll "%FARM_OUT%\lib\" >nul
if not "%ERRORLEVEL%"=="0" set "FARM_SHORT=%1"
exit /b 0

:memory
find "%1:" "%FARM_LOG%" >nul
if "%ERRORLEVEL%"=="0" set "FARM_SAID=1"
if "%ERRORLEVEL%"=="0" set "FARM_NEXT=a compiler had too little memory (%1): set FARM_JOBS to less than %MAX_JOBS%, or enlarge the page file, and run this again"
exit /b 0

:toolset
rem FARM_VS: an installation that can set up the toolset, and has its compiler. One whose own toolset it is comes first
rem (Visual Studio 2019 for 14.29): in a newer one the headers of the newer toolset are a wrong variable away.
if defined FARM_OWN exit /b 0
if not exist "%~1\VC\Auxiliary\Build\vcvarsall.bat" exit /b 0
if not exist "%~1\VC\Tools\MSVC\" exit /b 0
set "FARM_HAS="
pushd "%~1\VC\Tools\MSVC"
for /d %%t in (14.29.*) do if exist "%%t\bin\Hostx64\x64\cl.exe" set "FARM_HAS=1"
popd
if not defined FARM_HAS exit /b 0
set "FARM_VS=%~1"
set "FARM_DEFAULT="
if exist "%~1\VC\Auxiliary\Build\Microsoft.VCToolsVersion.default.txt" for /f "usebackq" %%v in ("%~1\VC\Auxiliary\Build\Microsoft.VCToolsVersion.default.txt") do set "FARM_DEFAULT=%%v"
if "%FARM_DEFAULT:~0,5%"=="14.29" set "FARM_OWN=1"
exit /b 0

:stop
rem The server of sccache goes on by itself, and holds the folder in which it was started. It has a port of its own: at the
rem usual one, 4226, the user's own server may run.
set "SCCACHE_SERVER_PORT=4227"
if exist C:\farm\tools\sccache\sccache.exe C:\farm\tools\sccache\sccache.exe --stop-server >nul 2>&1
exit /b 0

:clear
rem Every variable whose name begins so; asked for at once, since each question starts a cmd.exe.
for /f "delims==" %%v in ('set ATEN_^&set BUILD_^&set CMAKE^&set CONDA^&set CUDA^&set CUDNN^&set DevEnvDir^&set ICPP^&set ICX^&set INTEL^&set IFORT^&set LIBUV^&set MAGMA^&set MKL^&set MSVC^&set NCCL^&set NVTOOLSEXT^&set ONEAPI^&set OpenBLAS^&set PIP_CONSTRAINT^&set PIP_FIND_LINKS^&set PIP_NO_BINARY^&set PIP_NO_INDEX^&set PIP_PREFIX^&set PIP_REQUIRE_HASHES^&set PIP_TARGET^&set PIP_USER^&set PYTORCH_^&set SCCACHE_^&set TBB^&set TORCH^&set USE_^&set VC^&set VIRTUAL_ENV^&set VS^&set VSCMD^&set WindowsSDK') do set "%%v="
exit /b 0

:gone
rem Removes a folder; a virus scanner or indexer may hold a file in it for some seconds.
if not exist "%~1\" exit /b 0
rmdir /s /q "%~1" 2>> "%FARM_LOG%"
for /l %%n in (1,1,5) do if exist "%~1\" ping -n 3 127.0.0.1 >nul & rmdir /s /q "%~1" 2>> "%FARM_LOG%"
if exist "%~1\" exit /b 1
exit /b 0
