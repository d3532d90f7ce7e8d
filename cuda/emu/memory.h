// memory.h: the device's memory. Every byte has two addresses: the device's, which the host hands around and kernels use,
// and the library's own, through which copies go and red zones are read. The device's addresses are inaccessible except
// while a kernel runs, so a host that follows one faults.
//
//   | guard page | red zone (256 bytes or more) | data, from a multiple of 256 | slack (red zone) | guard page |
//
// Addresses are never given out twice: one that was freed faults for good, and the record says whose it was.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace emu {

struct Allocation {
    std::uint64_t address;  // the device's
    std::size_t bytes;      // asked for
    std::uint64_t low, high;  // the pages it lies in, without guards
    std::uint64_t serial;
    std::uint64_t owner;    // serial of its context
    unsigned char *host = nullptr;  // pinned: the host's own address of the first byte
    bool freed = false;
    std::string freedAfter;  // what the device ran last
    std::uint64_t end() const { return address + bytes; }
};

class Memory {
  public:
    static Memory &get();

    // Null when the window has no room left; says nothing about the budget, which is the caller's.
    Allocation *allocate(std::size_t bytes, bool pinned, std::uint64_t owner);
    void release(Allocation *a, const char *after);

    // The allocation that begins at an address, live or freed; null when none ever did.
    Allocation *at(std::uint64_t address);
    // The allocation nearest to an address: that in whose pages or guard it lies, else the one below, else null.
    Allocation *around(std::uint64_t address);
    // The pinned allocation that holds a host address.
    Allocation *pinned(const void *host);
    bool inWindow(std::uint64_t address) const { return address - base < kWindow; }
    // The library's own address of a device address.
    unsigned char *own(std::uint64_t address) const { return mine + (address - base); }

    // Describes an address for an error: "7 bytes past the end of allocation 12 (4096 bytes)".
    std::string describe(std::uint64_t address);

    // Looks at the red zones of every live allocation and mends them; returns a description of each that was written to.
    // Only the 256 bytes next to the data, unless whole: this runs after every launch.
    std::vector<std::string> damaged(bool whole);

    // A kernel is about to run, or has ended; the last one out closes the window.
    void open();
    void close();

    // Bytes that live allocations take of the device; pinned ones take none.
    std::uint64_t deviceBytes();
    std::vector<Allocation *> live();

    static constexpr std::uint64_t kWindow = std::uint64_t{1} << 40, kPage = 4096, kZone = 256;

  private:
    Memory();
    bool checkZone(std::uint64_t low, std::uint64_t high, std::uint64_t *where);
    void paint(std::uint64_t low, std::uint64_t high);

    std::mutex mu;
    int dataFile, emptyFile;
    std::uint64_t base;
    unsigned char *mine;
    std::uint64_t next;  // the first address never used
    std::map<std::uint64_t, Allocation> all;       // by low
    std::map<const unsigned char *, Allocation *> pins;  // by host address
    std::vector<Allocation *> alive;
    std::uint64_t taken = 0;
    unsigned char zone[2 * kPage];  // what a red zone holds
    int users = 0;  // kernels running
};

}  // namespace emu
