#!/bin/sh
# install-toolkit.sh [PREFIX]: what `make CUDA=1` needs, on Debian 12, as root: nvcc 11.8 with its headers, cuobjdump and
# the libcuda stub in PREFIX (default /opt/cuda-11.8, which build.sh looks into), and g++-11, the newest host compiler
# that this nvcc takes. A second run finds it there and changes nothing.
#
# Debian has it all in its component non-free, which gets a sources file of its own. The package nvidia-cuda-dev wants
# the driver and every library of the toolkit, 4 GB once unpacked; a compiler for kernels needs 200 MB of two packages.
# So those two (860 MB) are downloaded and their parts laid out as NVIDIA lays out a toolkit. A machine that has the
# driver anyway may as well use `apt-get install nvidia-cuda-toolkit`: build.sh finds that too.
set -eu

prefix=${1:-/opt/cuda-11.8}
sources=/etc/apt/sources.list.d/sluice-cuda.sources

die() {
    echo "install-toolkit.sh: $*" >&2
    exit 1
}

complete() { [ -f "$prefix/complete" ] && "$prefix/bin/nvcc" --version >/dev/null 2>&1 && command -v g++-11 >/dev/null; }

if complete; then
    echo "install-toolkit.sh: $prefix is complete"
    exit 0
fi

. /etc/os-release
[ "${VERSION_CODENAME:-}" = bookworm ] && [ "$(dpkg --print-architecture)" = amd64 ] ||
    die "this is ${PRETTY_NAME:-an unknown system}; the script is for Debian 12 on amd64. Install a CUDA toolkit, 11.8 or newer, and set CUDA_HOME"
[ "$(id -u)" = 0 ] || die "needs root: apt-get installs packages"
case $prefix in
/*) ;;
*) die "PREFIX $prefix: want an absolute path" ;;
esac

export DEBIAN_FRONTEND=noninteractive

available() { LC_ALL=C apt-cache policy nvidia-cuda-toolkit 2>/dev/null | grep -q 'Candidate: 11\.8'; }

if ! available; then
    # What apt knows of main may itself be missing on a machine that was never updated.
    [ -n "$(apt-get indextargets 'Created-By: Packages' 'Codename: bookworm' 'Component: main')" ] || apt-get -qq update || die "apt-get update failed"
    # The same archive that main comes from, whatever mirror that is.
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Component: main' | head -n 1)
    [ -n "$uri" ] || die "no source of Debian bookworm among apt's sources"
    cat >"$sources" <<END
# Written by sluice's cuda/install-toolkit.sh, for the CUDA toolkit.
Types: deb
URIs: ${uri%/}
Suites: bookworm
Components: non-free
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
    apt-get -qq update || die "apt-get update failed"
    available || die "$uri non-free has no nvidia-cuda-toolkit 11.8"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"

apt-get -qq install -y --no-install-recommends g++-11 xz-utils >"$work/apt.log" 2>&1 || {
    tail -n 5 "$work/apt.log" >&2
    die "could not install g++-11"
}
cd "$work"
apt-get -qq -o APT::Sandbox::User=root download nvidia-cuda-toolkit nvidia-cuda-dev libcu++-dev || die "could not download the toolkit's packages"

# unpack PACKAGE PATTERN...: the members of a package that match
unpack() {
    package=$1
    shift
    dpkg-deb --fsys-tarfile "$package"_*.deb | tar -x --wildcards -C "$work" "$@" || die "could not unpack $package"
}
unpack nvidia-cuda-toolkit './usr/bin/*' './usr/lib/nvidia-cuda-toolkit/bin/*' './usr/lib/nvidia-cuda-toolkit/libdevice/*' './usr/share/doc/nvidia-cuda-toolkit/copyright'
unpack nvidia-cuda-dev './usr/include/*' './usr/lib/x86_64-linux-gnu/stubs/libcuda.so'
unpack libcu++-dev './usr/include/*'

rm -rf "$prefix"
mkdir -p "$prefix/bin" "$prefix/nvvm/bin" "$prefix/lib64/stubs"
(
    cd usr/bin && mv -t "$prefix/bin" bin2c cudafe++ cuobjdump fatbinary nvdisasm nvlink ptxas
)
mv usr/lib/nvidia-cuda-toolkit/bin/nvcc usr/lib/nvidia-cuda-toolkit/bin/crt "$prefix/bin"
mv usr/lib/nvidia-cuda-toolkit/bin/cicc "$prefix/nvvm/bin"
mv usr/lib/nvidia-cuda-toolkit/libdevice "$prefix/nvvm"
mv usr/include "$prefix"
mv usr/lib/x86_64-linux-gnu/stubs/libcuda.so "$prefix/lib64/stubs"
mv usr/share/doc/nvidia-cuda-toolkit/copyright "$prefix"
cat >"$prefix/bin/nvcc.profile" <<'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64/stubs"
END
"$prefix/bin/nvcc" --version >/dev/null || die "$prefix/bin/nvcc does not run"
touch "$prefix/complete"
echo "install-toolkit.sh: $("$prefix/bin/nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/nvcc \1/p') in $prefix ($(du -sh "$prefix" | cut -f1)), host compiler g++-11"
