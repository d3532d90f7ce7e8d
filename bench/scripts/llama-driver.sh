#!/usr/bin/env bash
# llama-driver.sh OUT: builds OUT/llama-speed, a driver around llama.cpp's C library.
#
# The prebuilt library and the headers of its release come from the npm package node-llama-cpp, which
# is installed into OUT (or taken from the folder that NLC names). Its JavaScript binding is not used.
set -euo pipefail
[ $# = 1 ] || { sed -n 2,5p "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
out=$(cd "$1" && pwd)
nlc=${NLC:-$out}
if [ ! -d "$nlc/node_modules/node-llama-cpp" ]; then
    echo '{"name":"peer","private":true}' >"$nlc/package.json"
    (cd "$nlc" && npm install --silent --no-audit --no-fund --ignore-scripts --save-exact node-llama-cpp@3.21.1)
fi
mods=$nlc/node_modules
libs=$mods/@node-llama-cpp/linux-x64/bins/linux-x64
if [ ! -f "$out/include/llama.h" ]; then
    rm -rf "$out/release"
    git clone -q --no-checkout "$mods/node-llama-cpp/llama/gitRelease.bundle" "$out/release" 2>/dev/null
    mkdir -p "$out/include"
    for f in include/llama.h $(git -C "$out/release" ls-tree --name-only HEAD ggml/include/); do
        git -C "$out/release" show "HEAD:$f" >"$out/include/$(basename "$f")"
    done
    rm -rf "$out/release"
fi
llama=$(basename "$(ls "$libs"/libllama.v*.so)")
ggml=$(basename "$(ls "$libs"/libggml.v*.so)")
${CC:-gcc} -O2 -Wall -Wextra -I"$out/include" -o "$out/llama-speed" "$here/llama-speed.c" \
    -L"$libs" -l:"$llama" -l:"$ggml" -l:libggml-base.so -Wl,-rpath,"$libs"
ln -sfn "$libs" "$out/backends"
echo "$out/llama-speed"
