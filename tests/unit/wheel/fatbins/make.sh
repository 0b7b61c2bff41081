#!/bin/sh
# Makes the fat binaries here anew: `make.sh VERSION lz4|zstd|concat|concat-lz4 GENCODE…`, with nvcc of that version on PATH.
# cuda11.8: -gencode arch=compute_35,code=sm_35 and the same of 75; cuda13.0 and 13.5: 75, 90a and 100f.
set -eu
version=$1 how=$2
shift 2
case $how in
concat) set -- "$@" -lineinfo --concat ;;
concat-lz4) set -- "$@" --concat --compress-mode=speed ;;
esac
for name in kernel empty; do
    code='void nothing() {}'
    [ $name = empty ] || code='__global__ void k(float *a) { a[threadIdx.x] += 1; }'
    echo "$code" >$name.cu
    nvcc "$@" -Xfatbin -compress-all -fatbin -o "$name-cuda$version-$how.fatbin" $name.cu
    rm $name.cu
done
