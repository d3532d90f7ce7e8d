#include "capture.h"

#include <algorithm>

#include "report.h"

namespace emu {

static auto &running = *new std::vector<std::shared_ptr<Capture>>;
static std::uint64_t ids = 0;

Result beginCapture(const std::shared_ptr<Stream> &s, int mode) {
    if (s == s->context->legacy) return kCaptureUnsupported;
    if (s->capture) return kIllegalState;
    auto c = std::make_shared<Capture>();
    c->mode = mode;
    c->thread = std::this_thread::get_id();
    c->origin = s->serial;
    c->id = ++ids;
    c->streams.insert(s);
    s->capture = c;
    running.push_back(c);
    return kSuccess;
}

Result endCapture(Stream &s, Nodes *out) {
    std::shared_ptr<Capture> c = s.capture;
    if (!c) return kIllegalState;
    if (c->origin != s.serial) return kCaptureUnmatched;
    if (c->mode != kCaptureRelaxed && c->thread != std::this_thread::get_id()) return kCaptureWrongThread;
    c->ended = true;
    for (const auto &t : c->streams) t->capture = nullptr;
    running.erase(std::find(running.begin(), running.end(), c));
    if (c->broken) return kCaptureInvalidated;
    const Seen &mine = c->seen[s.serial];
    for (const auto &[serial, seen] : c->seen) {
        const auto tail = seen.find(serial);
        const auto known = mine.find(serial);
        if (tail != seen.end() && (known == mine.end() || known->second < tail->second)) {
            note("end of capture: the work of stream %llu was never joined", (unsigned long long)serial);
            return kCaptureUnjoined;
        }
    }
    *out = std::make_shared<std::vector<Operation>>(std::move(c->nodes));
    return kSuccess;
}

Result appendNode(Stream &s, Operation op) {
    Capture &c = *s.capture;
    if (c.broken) return kCaptureInvalidated;
    c.nodes.push_back(std::move(op));
    c.seen[s.serial][s.serial] = c.nodes.size();
    return kSuccess;
}

void breakCapture(Capture &c) { c.broken = true; }

void markCapture(Stream &s, Mark &m) {
    m.capture = s.capture;
    m.seen = s.capture->seen[s.serial];
}

Result followCapture(const std::shared_ptr<Stream> &s, const Mark &m, bool *handled) {
    *handled = m.capture || s->capture;
    if (!*handled) return kSuccess;
    if (m.capture && m.capture->ended) return kCapturedEvent;
    if (!m.capture) {
        breakCapture(*s->capture);
        return kCaptureIsolation;
    }
    if (s->capture && s->capture != m.capture) {
        breakCapture(*s->capture);
        breakCapture(*m.capture);
        return kCaptureMerge;
    }
    if (s == s->context->legacy) {
        breakCapture(*m.capture);
        return kCaptureImplicit;
    }
    s->capture = m.capture;
    m.capture->streams.insert(s);
    Seen &mine = m.capture->seen[s->serial];
    for (const auto &[serial, n] : m.seen) mine[serial] = std::max(mine[serial], n);
    return kSuccess;
}

Result refuseInCapture(const char *call) {
    std::lock_guard<std::mutex> held(lock);
    for (const auto &c : running)
        if (c->mode == kCaptureGlobal || (c->mode == kCaptureThreadLocal && c->thread == std::this_thread::get_id())) {
            note("%s during stream capture", call);
            breakCapture(*c);
            return kCaptureUnsupported;
        }
    return kSuccess;
}

}  // namespace emu
