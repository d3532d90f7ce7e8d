#!/usr/bin/env bash
# disks.sh: expert reads on real block devices: of 512 and 4096 bytes a sector, below each file system that can be made here, and
# on a device that fails below the file system. Tokens must be those of a run without reads; a device that fails must end the run
# with the file and the offset. Not a timing: it says what held, and fails where something did not.
#
#   ENGINE   our binary                                     (default bin/engine)
#   WORK     folder for the images, 400 MB                  (default: the temporary folder)
#
# A device fails in two ways: the image below a loop device is cut, and device-mapper's error target stands for a part of it where
# the kernel has device-mapper. Needs root and loop devices, and ends with 77 without them.
set -euo pipefail
export LC_ALL=C
[ $# = 0 ] || { sed -n 2,12p "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
engine=$(realpath "${ENGINE:-$here/../../bin/engine}")
self=disks.sh
# shellcheck source=bench/scripts/lowmem-group.sh
. "$here/lowmem-group.sh"
can_limit
leave_nothing
mapped=''
undo() {
    [ -z "$mounted" ] || umount "$work/disk"
    [ -z "$mapped" ] || dmsetup remove "$mapped"
    [ -z "$device" ] || losetup -d "$device"
    device='' mapped='' mounted=''
}
trap 'set +e; undo; cleanup' EXIT
mkdir "$work/disk"
failed=0
says() { # OK TEXT
    if [ "$1" = 0 ]; then echo "ok      $2"; else echo "FAILED  $2"; failed=1; fi
}

"$engine" gguf synth "$work/model.gguf" --preset small --experts 32 --layers 6 --type q4_k_m >/dev/null
mib=$(($(stat -c %s "$work/model.gguf") / 3 / 1048576))
generate() { # FILE FLAGS: the tokens
    local file=$1
    shift
    "$engine" run -m "$file" -p "a b c d e f" -n 24 --ignore-eos --temp 0 --json "$@" 2>"$work/err" >"$work/out" || return 1
    tr -d ' \n' <"$work/out" | grep -o '"tokens":\[[0-9,]*\],"text"'
}
want=$(generate "$work/model.gguf" --cache-mb 0)

# disk SECTOR KIND: a new device with sectors of so many bytes, and on it a file system with the model in it.
disk() {
    rm -f "$work/image"
    truncate -s 400M "$work/image"
    device=$(losetup --find --show --direct-io=on --sector-size "$1" "$work/image" 2>"$work/losetup") || device=''
    if [ -z "$device" ]; then
        [ $failed = 0 ] || exit 1
        skip "no loop device: $(cat "$work/losetup")"
    fi
    case $2 in ext4) mkfs.ext4 -q -F -m 0 -O ^has_journal "$device" ;; xfs) mkfs.xfs -q -f "$device" ;; btrfs) mkfs.btrfs -q -f "$device" >/dev/null 2>&1 ;; esac
    mount "$device" "$work/disk"
    mounted=1
    cp "$work/model.gguf" "$work/disk/model.gguf"
    sync "$work/disk/model.gguf"
}

for sector in 512 4096; do
    for kind in ext4 xfs btrfs; do
        command -v "mkfs.$kind" >/dev/null && grep -qw "$kind" /proc/filesystems || { echo "left out $kind: no mkfs.$kind, or not in this kernel"; continue; }
        disk "$sector" "$kind"
        for io in direct buffered; do
            got=$(generate "$work/disk/model.gguf" --cache-mb "$mib" --io "$io") && [ "$got" = "$want" ] && grep -q "$io reads over" "$work/err" && ! grep -q 'I/O off' "$work/err" && rc=0 || rc=1
            says $rc "$kind, sectors of $sector bytes, $io reads: tokens as without reads"
            [ $rc = 0 ] || tail -3 "$work/err"
        done
        undo
    done
done

# fails WHAT: a run from the mounted file must end by itself, and name the file, an offset and the error.
fails() {
    local rc=0
    for io in direct buffered; do
        timeout 60 "$engine" run -m "$work/disk/model.gguf" -p "a b c d e f" -n 24 --ignore-eos --temp 0 --cache-mb "$mib" --io "$io" >"$work/out" 2>"$work/err" && rc=0 || rc=$?
        [ "$rc" = 1 ] && tail -1 "$work/err" | grep -q 'model.gguf at offset [0-9]*: .*input/output error' && ok=0 || ok=1
        says $ok "$1, $io reads: $(tail -1 "$work/err")"
    done
}
# below: the first sector of the device, of 512 bytes, below the last 4 MiB of the file, which are experts; nothing if not known.
below() {
    filefrag -v -b512 "$work/disk/model.gguf" 2>/dev/null |
        awk -v at=$((($(stat -c %s "$work/disk/model.gguf") - 4194304) / 512)) '$1 ~ /^[0-9]+:$/ {gsub(/[.:]/, " "); if ($3 >= at) {print $4 + (at > $2 ? at - $2 : 0); exit}}'
}
disk 512 ext4
first=$(below)
echo 3 >/proc/sys/vm/drop_caches
if [ -n "$first" ]; then
    truncate -s $((first * 512)) "$work/image"
    fails "a device that ends below the file"
else
    echo "left out a device that ends below the file: filefrag does not say where the file is"
fi
undo

if ! grep -qw device-mapper /proc/devices /proc/misc; then
    echo "left out device-mapper's error target: this kernel has no device-mapper"
    exit $failed
fi
disk 512 ext4
first=$(below)
umount "$work/disk"
mounted=''
if [ -n "$first" ]; then
    sectors=$(blockdev --getsz "$device")
    mapped=sluice-disks-$$
    printf '0 %d linear %s 0\n%d 4096 error\n%d %d linear %s %d\n' "$first" "$device" "$first" $((first + 4096)) $((sectors - first - 4096)) "$device" $((first + 4096)) |
        dmsetup create "$mapped"
    mount "/dev/mapper/$mapped" "$work/disk"
    mounted=1
    fails "device-mapper's error target"
else
    echo "left out device-mapper's error target: filefrag does not say where the file is"
fi
exit $failed
