// kernel.h: kernels under their names. build.sh writes a source beside each .cu that includes it and registers what the
// scan found; the parameter types come from the declaration.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace emu {

enum class Param : unsigned char { kPointer, kWord, kLong };

struct Kernel {
    const char *name;
    const char *file;
    unsigned maxThreads;  // of __launch_bounds__, else 1024
    unsigned params;
    const Param *kinds;
    void (*call)(const std::uint64_t *cells);
    Kernel *next;
};

void registerKernel(Kernel *k);
Kernel *findKernel(const char *name);
Kernel *firstKernel();

template <typename T>
constexpr Param paramKind() {
    static_assert(std::is_pointer_v<T> || std::is_same_v<T, float> || (std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8)),
                  "a kernel takes pointers, 32 and 64 bit integers, and floats");
    return std::is_pointer_v<T> ? Param::kPointer : sizeof(T) == 4 ? Param::kWord : Param::kLong;
}

template <auto F>
struct Caller;

template <typename... P, void (*F)(P...)>
struct Caller<F> {
    template <typename T>
    static T load(const std::uint64_t *cell) {
        T v;
        std::memcpy(&v, cell, sizeof v);
        return v;
    }
    template <std::size_t... I>
    static void spread(const std::uint64_t *cells, std::index_sequence<I...>) {
        F(load<P>(cells + I)...);
    }
    static void call(const std::uint64_t *cells) { spread(cells, std::index_sequence_for<P...>{}); }
    static constexpr Param kinds[sizeof...(P) + 1] = {paramKind<P>()..., Param::kWord};
    static constexpr unsigned count = sizeof...(P);
};

template <auto F>
struct Registration {
    Registration(const char *name, const char *file, unsigned maxThreads)
        : kernel{name, file, maxThreads ? maxThreads : 1024, Caller<F>::count, Caller<F>::kinds, &Caller<F>::call, nullptr} {
        registerKernel(&kernel);
    }
    Kernel kernel;
};

}  // namespace emu
