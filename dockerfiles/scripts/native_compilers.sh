#!/bin/sh
# In an image for ARM on an x86_64 engine: puts compilers that run on the engine itself in the place of the emulated ones.
# They are the distribution's cross compilers of the same release. Make, CMake and Python stay emulated.
# Arguments: the C++ compiler of the plan, g++-12 for one.
set -eu
version=${1##*-}
target=aarch64-linux-gnu
folder=$(mktemp -d)
cd "$folder"
dpkg --add-architecture amd64
apt-get update -q=0
for name in "g++-$version" "gcc-$version" "cpp-$version" binutils; do set -- "$@" "$name-$target:amd64"; done
shift
if dpkg -s ccache > /dev/null 2>&1; then set -- "$@" ccache:amd64; fi
apt-get download -q=0 -o APT::Sandbox::User=root "$@"
libraries=$(for package in ./*.deb; do dpkg-deb -f "$package" Depends | tr ',' '\n'; done |
    sed -n 's/^ *\(z*lib[^ :]*\).*/\1/p' | grep -v -- -cross | sort -u | sed 's/$/:amd64/')
# shellcheck disable=SC2086
apt-get install -y -q=0 -o Dpkg::Use-Pty=0 --no-install-recommends $libraries
# Unpacked over the emulated ones and not installed: the packages of both machines exclude one another.
for package in ./*.deb; do dpkg -x "$package" /; done
# They look for headers and libraries in folders of their own.
cp -an "/usr/lib/gcc/$target/$version/." "/usr/lib/gcc-cross/$target/$version/"
mkdir -p "/usr/$target/include/c++"
ln -sfn "/usr/include/c++/$version" "/usr/$target/include/c++/$version"
ln -sfn "/usr/include/$target/c++/$version" "/usr/include/c++/$version/$target"
cd /
rm -rf "$folder"
