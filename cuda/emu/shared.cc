// Static shared memory is zero-initialised thread storage of this library (`static __thread`), and that is what gets
// painted. What the library itself keeps per thread is initialised to something else where it must outlive that, and so
// lies in another section; the threads that run blocks use nothing else of it.
#include "shared.h"

#include <cstring>
#include <link.h>

#include "processor.h"

namespace emu {

static __thread struct {
    unsigned char *begin;
    std::size_t size;
    bool elsewhere;
} storage = {nullptr, 0, true};

static int locate(dl_phdr_info *info, std::size_t, void *self) {
    bool ours = false;
    const ElfW(Phdr) *tls = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &p = info->dlpi_phdr[i];
        const auto a = reinterpret_cast<ElfW(Addr)>(self);
        if (p.p_type == PT_LOAD && a >= info->dlpi_addr + p.p_vaddr && a < info->dlpi_addr + p.p_vaddr + p.p_memsz) ours = true;
        if (p.p_type == PT_TLS) tls = &p;
    }
    if (!ours) return 0;
    if (tls && info->dlpi_tls_data) {
        storage.begin = static_cast<unsigned char *>(info->dlpi_tls_data) + tls->p_filesz;
        storage.size = tls->p_memsz - tls->p_filesz;
    }
    return 1;
}

void poisonStaticShared() {
    if (!storage.begin) dl_iterate_phdr(locate, reinterpret_cast<void *>(&poisonStaticShared));
    if (storage.begin) memset(storage.begin, kPoison, storage.size);
}

}  // namespace emu
