#include "config.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

namespace emu {

static long number(const char *name, long otherwise) {
    const char *v = getenv(name);
    if (!v || !*v) return otherwise;
    char *end;
    const long n = strtol(v, &end, 10);
    if (*end || n < 0) {
        fprintf(stderr, "emu: %s=%s: want a number\n", name, v);
        exit(2);
    }
    return n;
}

static Config read() {
    Config c;
    c.devices = static_cast<int>(number("SLUICE_EMU_DEVICES", 1));
    c.bytes = static_cast<std::uint64_t>(number("SLUICE_EMU_MB", 1024)) << 20;
    c.driver = static_cast<int>(number("SLUICE_EMU_DRIVER", 11080));
    c.timeout = static_cast<double>(number("SLUICE_EMU_TIMEOUT", 120));
    c.verbose = number("SLUICE_EMU_VERBOSE", 0) != 0;
    if (const char *v = getenv("SLUICE_EMU_ARCH"); v && *v) {
        int a = 0;
        if (sscanf(v, "sm_%d", &a) != 1 || a < 30 || a > 200) {
            fprintf(stderr, "emu: SLUICE_EMU_ARCH=%s: want sm_ and a number, as sm_90\n", v);
            exit(2);
        }
        c.major = a / 10;
        c.minor = a % 10;
    }
    if (const char *v = getenv("SLUICE_EMU_ORDER"); v && *v) {
        if (strcmp(v, "forward") != 0 && strcmp(v, "reverse") != 0) {
            fprintf(stderr, "emu: SLUICE_EMU_ORDER=%s: want forward or reverse\n", v);
            exit(2);
        }
        c.order = strcmp(v, "reverse") == 0;
    }
    if (const char *v = getenv("SLUICE_EMU_STATE"); v && *v) c.state = v;
    return c;
}

const Config &config() {
    static const Config *c = new Config(read());
    return *c;
}

// Compute capabilities table of the CUDA C++ Programming Guide, "maximum amount of shared memory per thread block".
unsigned Config::maxShared() const {
    switch (arch()) {
    case 70: return 96 << 10;
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: return 99 << 10;
    case 90: case 100: return 227 << 10;
    }
    return 48 << 10;
}

struct Injection {
    std::string call;
    long nth;  // 0: every one
    long seen;
    Result code;
};

static std::mutex mu;
static std::vector<Injection> *injections;
static std::atomic<bool> any{false};

bool setFailures(const char *spec) {
    auto *list = new std::vector<Injection>;
    for (const char *p = spec ? spec : ""; *p;) {
        const std::size_t n = strcspn(p, ",");
        std::string item(p, n);
        p += n + (p[n] == ',');
        Injection i{"", 0, 0, kUnknown};
        if (const auto eq = item.find('='); eq != std::string::npos) {
            i.code = static_cast<Result>(atoi(item.c_str() + eq + 1));
            item.resize(eq);
        }
        if (const auto colon = item.find(':'); colon != std::string::npos) {
            i.nth = atol(item.c_str() + colon + 1);
            item.resize(colon);
        }
        if (item.rfind("cu", 0) != 0) {
            delete list;
            return false;
        }
        i.call = item;
        list->push_back(i);
    }
    std::lock_guard<std::mutex> lock(mu);
    delete injections;
    injections = list;
    any = !list->empty();
    return true;
}

Result injected(const char *call) {
    static const bool once = [] {
        if (!any && !setFailures(getenv("SLUICE_EMU_FAIL"))) {
            fprintf(stderr, "emu: SLUICE_EMU_FAIL=%s: want NAME[:NTH][=CODE],... of driver calls\n", getenv("SLUICE_EMU_FAIL"));
            exit(2);
        }
        return true;
    }();
    (void)once;
    if (!any) return kSuccess;
    std::lock_guard<std::mutex> lock(mu);
    for (Injection &i : *injections)
        if (i.call == call && (++i.seen == i.nth || i.nth == 0)) return i.code;
    return kSuccess;
}

}  // namespace emu
