#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

// Bytes of a red zone, and of fresh memory: NaN as float and as half.
static constexpr std::uint16_t kZonePattern = 0xffe5, kFreshPattern = 0xffd3;
// Fresh memory is painted up to here; beyond, painting would cost the tests more than it finds.
static constexpr std::size_t kPaintFresh = 4 << 20;

[[noreturn]] static void die(const char *what) {
    perror(what);
    abort();
}

static std::uint64_t up(std::uint64_t v, std::uint64_t unit) { return (v + unit - 1) / unit * unit; }

static void fill(unsigned char *p, std::size_t n, std::uint16_t pattern) {
    for (std::size_t i = 0; i < n; i++) p[i] = static_cast<unsigned char>(pattern >> 8 * (i % 2));
}

Memory &Memory::get() {
    static Memory *m = new Memory;  // never destroyed: threads may still run at exit
    return *m;
}

// Guards and freed pages are mapped from an empty file: they fault whatever their protection, so one call opens or closes
// the whole window. (Data pages come from a sparse file as long as the window; it holds only what is written.)
Memory::Memory() {
    dataFile = memfd_create("emu-device", MFD_CLOEXEC);
    emptyFile = memfd_create("emu-guard", MFD_CLOEXEC);
    if (dataFile < 0 || emptyFile < 0 || ftruncate(dataFile, kWindow) != 0) die("emu: device memory file");
    // The address asked for is only easy to tell in a dump.
    void *w = mmap(reinterpret_cast<void *>(0x600000000000), kWindow, PROT_NONE, MAP_SHARED | MAP_NORESERVE, emptyFile, 0);
    void *m = mmap(nullptr, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, dataFile, 0);
    if (w == MAP_FAILED || m == MAP_FAILED) die("emu: device memory window");
    madvise(m, kWindow, MADV_DONTDUMP);
    base = reinterpret_cast<std::uint64_t>(w);
    mine = static_cast<unsigned char *>(m);
    next = base + kPage;
    fill(zone, sizeof zone, kZonePattern);
}

void Memory::paint(std::uint64_t low, std::uint64_t high) { memcpy(own(low), zone + low % 2, high - low); }

Allocation *Memory::allocate(std::size_t bytes, bool pinned, std::uint64_t owner) {
    const std::uint64_t unit = pinned ? kPage : kZone;
    const std::uint64_t whole = up(bytes, unit), span = up(whole + kZone, kPage);
    std::lock_guard<std::mutex> lock(mu);
    if (bytes > kWindow / 4 || next + span + 2 * kPage > base + kWindow) return nullptr;
    Allocation a{};
    a.low = next;
    a.high = next + span;
    a.address = a.high - whole;
    a.bytes = bytes;
    a.serial = all.size() + 1;
    a.owner = owner;
    const int protection = users > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    const auto offset = static_cast<off_t>(a.low - base);
    if (mmap(reinterpret_cast<void *>(a.low), span, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, dataFile, offset) == MAP_FAILED)
        return nullptr;
    if (pinned) {
        // The host's own pages of the same bytes, between guards of their own.
        void *room = mmap(nullptr, span + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        auto *p = static_cast<unsigned char *>(room);
        if (room == MAP_FAILED || mmap(p + kPage, span, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, dataFile, offset) == MAP_FAILED)
            die("emu: pinned memory");
        a.host = p + kPage + (a.address - a.low);
    }
    next = a.high + kPage;
    fill(own(a.address), std::min(bytes, kPaintFresh), kFreshPattern);
    paint(a.low, a.address);
    paint(a.end(), a.high);
    Allocation *kept = &all.emplace(a.low, a).first->second;
    alive.push_back(kept);
    if (pinned)
        pins[kept->host] = kept;
    else
        taken += bytes;
    return kept;
}

void Memory::release(Allocation *a, const char *after) {
    std::lock_guard<std::mutex> lock(mu);
    const std::uint64_t span = a->high - a->low;
    const int protection = users > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
    const auto offset = static_cast<off_t>(a->low - base);
    void *gone = mmap(reinterpret_cast<void *>(a->low), span, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, emptyFile, offset);
    if (a->host) {
        // What follows a stale host address must fault as well, and not land in a later mapping.
        void *p = a->host - (a->address - a->low);
        if (mmap(p, span, PROT_NONE, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) gone = MAP_FAILED;
        pins.erase(a->host);
    } else {
        taken -= a->bytes;
    }
    if (gone == MAP_FAILED || fallocate(dataFile, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, static_cast<off_t>(span)) != 0)
        die("emu: freeing device memory");
    a->freed = true;
    a->freedAfter = after;
    alive.erase(std::find(alive.begin(), alive.end(), a));
}

Allocation *Memory::around(std::uint64_t address) {
    std::lock_guard<std::mutex> lock(mu);
    auto it = all.upper_bound(address);
    // A guard page belongs to the allocation before it, except the half next to the one after it.
    if (it != all.end() && it->first - address <= kPage / 2) return &it->second;
    return it == all.begin() ? nullptr : &std::prev(it)->second;
}

Allocation *Memory::at(std::uint64_t address) {
    Allocation *a = around(address);
    return a && a->address == address ? a : nullptr;
}

Allocation *Memory::pinned(const void *host) {
    std::lock_guard<std::mutex> lock(mu);
    auto *p = static_cast<const unsigned char *>(host);
    auto it = pins.upper_bound(p);
    if (it == pins.begin()) return nullptr;
    Allocation *a = std::prev(it)->second;
    return p < a->host + (a->high - a->address) ? a : nullptr;
}

std::string Memory::describe(std::uint64_t address) {
    char text[200];
    using ull = unsigned long long;
    const Allocation *a = inWindow(address) ? around(address) : nullptr;
    if (!a) {
        snprintf(text, sizeof text, "address %#llx, which is no device memory", static_cast<ull>(address));
        return text;
    }
    const char *place = address < a->address ? "bytes before" : address >= a->end() ? "bytes past the end of" : nullptr;
    const ull distance = address < a->address ? a->address - address : address >= a->end() ? address - a->end() : address - a->address;
    const char *kind = a->freed ? "freed " : a->host ? "pinned " : "";
    if (place)
        snprintf(text, sizeof text, "%llu %s %sallocation %llu (%zu bytes)", distance, place, kind, static_cast<ull>(a->serial), a->bytes);
    else
        snprintf(text, sizeof text, "byte %llu of %sallocation %llu (%zu bytes)", distance, kind, static_cast<ull>(a->serial), a->bytes);
    return text;
}

// The first byte of a zone that has changed; mended, so that it is told once.
bool Memory::checkZone(std::uint64_t low, std::uint64_t high, std::uint64_t *where) {
    const unsigned char *p = own(low), *want = zone + low % 2;
    if (memcmp(p, want, high - low) == 0) return true;
    std::size_t i = 0;
    while (p[i] == want[i]) i++;
    *where = low + i;
    paint(low, high);
    return false;
}

std::vector<std::string> Memory::damaged(bool whole) {
    std::vector<std::uint64_t> places;
    {
        std::lock_guard<std::mutex> lock(mu);
        std::uint64_t where;
        for (Allocation *a : alive) {
            if (!checkZone(whole ? a->low : a->address - kZone, a->address, &where)) places.push_back(where);
            if (!checkZone(a->end(), whole ? a->high : std::min(a->high, a->end() + kZone), &where)) places.push_back(where);
        }
    }
    std::vector<std::string> out;
    for (std::uint64_t p : places) out.push_back(describe(p));
    return out;
}

void Memory::open() {
    std::lock_guard<std::mutex> lock(mu);
    if (users++ == 0 && mprotect(reinterpret_cast<void *>(base), next - base, PROT_READ | PROT_WRITE) != 0) die("emu: opening device memory");
}

void Memory::close() {
    std::lock_guard<std::mutex> lock(mu);
    if (--users == 0 && mprotect(reinterpret_cast<void *>(base), next - base, PROT_NONE) != 0) die("emu: closing device memory");
}

std::uint64_t Memory::deviceBytes() {
    std::lock_guard<std::mutex> lock(mu);
    return taken;
}

std::vector<Allocation *> Memory::live() {
    std::lock_guard<std::mutex> lock(mu);
    return alive;
}

}  // namespace emu
