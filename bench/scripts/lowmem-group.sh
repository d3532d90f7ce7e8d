# lowmem-group.sh: what lowmem.sh and skew-drop.sh share: a group with little memory, a disk with its own readahead, and the
# figures of a run; disks.sh has its beginning and end from here. To be sourced; the caller has set self (its name), engine,
# fraction, readahead and tg, as far as what it calls reads them, and may set trap handlers of its own only after calling
# leave_nothing.

skip() { echo "$self: skipped: $*" >&2; exit 77; }

# leave_nothing: makes the folder $work and sees to it that at the end the folder, the group and the device are gone.
leave_nothing() {
    work=$(mktemp -d "${WORK:-${TMPDIR:-/tmp}}/${self%.sh}.XXXXXX")
    group='' device='' mounted='' slow=''
    trap cleanup EXIT
    trap 'exit 130' INT TERM
}
cleanup() {
    set +e
    [ -z "$mounted" ] || umount "$work/disk"
    [ -z "$device" ] || losetup -d "$device"
    for g in $group $slow; do for _ in $(seq 50); do rmdir "$g" 2>/dev/null && break; sleep 0.1; done; done
    rm -rf "$work"
}

can_limit() {
    [ -x "$engine" ] || { echo "$self: no engine at $engine: run make first" >&2; exit 1; }
    [ "$(id -u)" = 0 ] || skip "only root can limit memory and set up a loop device"
    for tool in losetup mkfs.ext4 mount; do command -v "$tool" >/dev/null || skip "there is no $tool"; done
}

# limit_group BYTES: the group, with so much memory. Version 1: below our own. Version 2: below the root, as a group that
# holds processes can have no children with a controller.
limit_group() {
    local v1 v2
    limit=$1
    v1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)memory(,|$)/ {print $2; exit}' /proc/mounts)
    v2=$(awk '$3 == "cgroup2" {print $2; exit}' /proc/mounts)
    if [ -n "$v1" ]; then
        group=$v1$(awk -F: '$2 ~ /(^|,)memory(,|$)/ {print $3; exit}' /proc/self/cgroup)/${self%.sh}-$$
        mkdir "$group" 2>/dev/null || { group=''; skip "cannot make a memory group below $v1"; }
        echo "$limit" >"$group/memory.limit_in_bytes"
        echo 0 >"$group/memory.swappiness"
        peak=memory.max_usage_in_bytes hits=memory.failcnt
    elif [ -n "$v2" ] && grep -qw memory "$v2/cgroup.controllers"; then
        echo +memory >"$v2/cgroup.subtree_control" 2>/dev/null || skip "cannot hand on the memory controller of $v2"
        group=$v2/${self%.sh}-$$
        mkdir "$group" 2>/dev/null || { group=''; skip "cannot make a memory group below $v2"; }
        echo "$limit" >"$group/memory.max"
        [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
        peak=memory.peak hits=memory.events
    else
        skip "no memory controller is mounted"
    fi
}

# own_disk MODEL: copies the model into a file system of its own on a loop device, because readahead belongs to a device and
# nothing else on the machine should change. $file is the copy.
own_disk() {
    local bytes
    bytes=$(stat -c %s "$1")
    truncate -s $(((bytes + bytes / 32 + (64 << 20)) / 1048576 * 1048576)) "$work/image"
    mkfs.ext4 -q -F -m 0 -O ^has_journal "$work/image"
    device=$(losetup --find --show --direct-io=on "$work/image" 2>"$work/losetup") || { device=''; skip "no loop device: $(cat "$work/losetup")"; }
    echo "$readahead" >"/sys/block/${device##*/}/queue/read_ahead_kb"
    mkdir "$work/disk"
    mount "$device" "$work/disk" || skip "cannot mount $device"
    mounted=1
    file=$work/disk/model.gguf
    cp "$1" "$file"
    sync "$file"
}

# slow_disk BYTES: what runs in the group reads from the device at no more than so many bytes a second.
slow_disk() {
    local v1 number
    number=$(lsblk -dno MAJ:MIN "$device" | tr -d ' ')
    v1=$(awk '$3 == "cgroup" && $4 ~ /(^|,)blkio(,|$)/ {print $2; exit}' /proc/mounts)
    if [ -n "$v1" ]; then
        slow=$v1/${self%.sh}-$$
        mkdir "$slow" 2>/dev/null || { slow=''; skip "cannot make a group below $v1"; }
        echo "$number $1" >"$slow/blkio.throttle.read_bps_device"
    elif [ -e "$group/io.max" ] || echo +io >"${group%/*}/cgroup.subtree_control" 2>/dev/null; then
        echo "$number rbps=$1" >"$group/io.max"
    else
        skip "no controller that limits reads"
    fi
}

# share_of MODEL: the bytes of $fraction of it, in whole pages.
share_of() { awk -v b="$(stat -c %s "$1")" -v f="$fraction" 'BEGIN {printf "%d", int(b * f / 4096) * 4096}'; }

# within NAME COMMAND...: one process in the group, from a cold page cache, which counts against whoever filled it.
within() {
    local name=$1
    shift
    dd if="$file" iflag=nocache count=0 status=none
    [ "$peak" != memory.max_usage_in_bytes ] || echo 0 >"$group/$peak"
    bash -c 'for g in $1; do echo $$ >"$g/cgroup.procs"; done; shift; exec "$@"' _ "$group $slow" "$@" >"$work/$name" 2>"$work/$name.err" ||
        { echo "$self: $name failed:" >&2; tail -5 "$work/$name.err" >&2; exit 1; }
    cat "$group/$peak" >"$work/$name.peak" 2>/dev/null || echo 0 >"$work/$name.peak"
}

# Of a document of engine bench: the value of a key in the result of a test; anywhere in it; in one of its objects.
result() { awk -v t="\"$2\"" -v k="\"$3\":" '$1 == "\"test\":" {on = index($2, t) == 1} on && $1 == k {sub(/,$/, "", $2); print $2; exit}' "$1"; }
anywhere() { awk -v k="\"$2\":" '$1 == k {sub(/,$/, "", $2); print $2; exit}' "$1"; }
inside() { awk -v o="\"$2\":" -v k="\"$3\":" '$1 == o {on = 1} on && $1 == k {sub(/,$/, "", $2); print $2; exit}' "$1"; }
median() { sort -g | awk '{v[NR] = $1} END {if (NR) printf "%.6g\n", NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
spread() { sort -g | awk 'NR == 1 {a = $1} {b = $1} END {printf "%.4g..%.4g", a, b}'; }

# memory_of NAME: what a process held at most by its own word, what the group did, and the cache's budget.
memory_of() { echo "$(awk '/^memory: .* resident/ {print $NF * 2 ^ 20}' "$work/$1.err") $(cat "$work/$1.peak") $(anywhere "$work/$1" budget_bytes)"; }
memory_line() {
    awk -v limit="$limit" '{if ($1 > p) p = $1; if ($2 > g) g = $2; b = $3} END {printf "memory   cache of %d MiB; the process held at most %d MiB, the group %d of %d MiB: %d below the limit\n", b / 2^20, p / 2^20, g / 2^20, limit / 2^20, (limit - g) / 2^20}' "$1"
    [ ! -r "$group/$hits" ] || echo "group    $hits: $(tr '\n' ' ' <"$group/$hits")"
}

# steps LOG: the decode steps of the timed round, the last TG. Prints median, p99 and largest in ms, bytes read and hits and
# misses, the shares of waiting and computing, drops and major faults.
steps() {
    grep -v '^#' "$1" | awk -F, 'NR == 1 {for (i = 1; i <= NF; i++) c[$i] = i; next}
        $c["decode"] == 1 {print $c["wall_us"], $c["bytes_read"], $c["hits"], $c["misses"], $c["io_wait_us"], $c["compute_us"], $c["dropped"], $c["major_faults"]}' | tail -n "$tg" |
        sort -g | awk '{w[NR] = $1; wall += $1; b += $2; h += $3; m += $4; io += $5; c += $6; d += $7; f += $8}
            END {p = int(0.99 * NR + 0.999999); printf "%.3f %.3f %.3f %d %d %d %.4f %.4f %d %d\n", w[int((NR + 1) / 2)] / 1e3, w[p] / 1e3, w[NR] / 1e3, b / NR, h, m, io / wall, c / wall, d, f}'
}
