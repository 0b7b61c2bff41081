@echo off
rem Compiles and links one C++ file and one CUDA file: an image that cannot is no toolchain image. Rendered by farm.
setlocal EnableExtensions DisableDelayedExpansion
set "FARM_VS="
rem Where it cannot be written, cmd does not start the program and keeps the exit code of the last one.
if exist C:\farm\t\vs.txt del /f /q C:\farm\t\vs.txt
"%ProgramFiles(x86)%\Microsoft Visual Studio\Installer\vswhere.exe" -utf8 -nologo -products * -property installationPath > C:\farm\t\vs.txt
if not "%ERRORLEVEL%"=="0" exit /b 9
for /f "usebackq delims=" %%i in ("C:\farm\t\vs.txt") do call :toolset "%%i"
if not defined FARM_VS echo prove.cmd: vswhere knows no Visual Studio with cl.exe of toolset 14.29& exit /b 9
cd /d "%FARM_VS%\VC\Auxiliary\Build"
if not exist vcvarsall.bat exit /b 9
call vcvarsall.bat x64 -vcvars_ver=14.29
if not "%ERRORLEVEL%"=="0" exit /b 9
cd /d C:\farm\t
for %%k in (.) do if /i not "%%~fk"=="C:\farm\t" exit /b 9
set "PATH=C:\farm\venv\Scripts;C:\farm\cuda-11.4-8.7.0\bin;%PATH%"
set "FARM_MISSING="
for %%t in (cl.exe link.exe rc.exe cmake.exe ninja.exe nvcc.exe) do if "%%~$PATH:t"=="" set "FARM_MISSING=%%t"
if defined FARM_MISSING echo prove.cmd: %FARM_MISSING% is not on PATH& exit /b 9
> one.cpp echo #include ^<cstdio^>
>> one.cpp echo int main() { std::puts("c++ works"); }
cl /nologo /EHsc one.cpp /link /out:one.exe
if not "%ERRORLEVEL%"=="0" exit /b 9
one.exe
if not "%ERRORLEVEL%"=="0" exit /b 9
> two.cu echo #include ^<cuda_runtime.h^>
>> two.cu echo __global__ void twice(float* x) { x[threadIdx.x] *= 2; }
>> two.cu echo int main() { twice^<^<^<1, 1^>^>^>(nullptr); return 0; }
rem It is linked and not started: there is no CUDA in Windows containers.
rem As in build.cmd: else nvcc starts vcvars64.bat by itself, without the toolset.
set "FARM_CL="
for %%c in (cl.exe) do set "FARM_CL=%%~$PATH:c"
nvcc --use-local-env -ccbin "%FARM_CL%" -Wno-deprecated-gpu-targets -gencode arch=compute_35,code=sm_35 -o two.exe two.cu
if not "%ERRORLEVEL%"=="0" exit /b 9
del /q one.* two.* 2>nul
echo prove.cmd: the toolchain works
exit /b 0

:toolset
rem As in build.cmd: what an uninstalled toolset leaves is a folder without a compiler.
if not exist "%~1\VC\Auxiliary\Build\vcvarsall.bat" exit /b 0
if not exist "%~1\VC\Tools\MSVC\" exit /b 0
pushd "%~1\VC\Tools\MSVC"
for /d %%t in (14.29.*) do if exist "%%t\bin\Hostx64\x64\cl.exe" set "FARM_VS=%~1"
popd
exit /b 0
