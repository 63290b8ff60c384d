#include "parallel.hpp"

#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace proxbit {
namespace {

std::atomic<pb_team> chosen{nullptr};
thread_local pb_team chosen_here = nullptr;

struct Job {
  void (*body)(void*, int64_t);
  void* data;
  int64_t parts;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
};

void take_parts(void* raw) {
  Job& job = *static_cast<Job*>(raw);
  for (;;) {
    const int64_t part = job.next.fetch_add(1, std::memory_order_relaxed);
    if (part >= job.parts) return;
    try {
      job.body(job.data, part);
    } catch (const std::bad_alloc&) {  // must not leave a thread that is not ours
      job.failed = true;
    }
  }
}

void own_team(void (*work)(void*), void* data, unsigned threads, unsigned) {
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(work, data);
  } catch (const std::system_error&) {  // no more to be had: those that run take all parts
  } catch (const std::bad_alloc&) {
  }
  work(data);
  for (std::thread& other : others) other.join();
}

}  // namespace

void use_team(pb_team team) { chosen.store(team); }

void use_team_here(pb_team team) { chosen_here = team; }

void for_parts_raw(int64_t parts, int threads, void (*body)(void*, int64_t), void* data) {
  const int64_t team_size = threads < parts ? threads : parts;
  if (team_size < 2) {
    for (int64_t part = 0; part < parts; ++part) body(data, part);
    return;
  }
  Job job{body, data, parts};
  const pb_team team = chosen_here ? chosen_here : chosen.load();
  (team ? team : own_team)(take_parts, &job, static_cast<unsigned>(team_size), 0);
  if (job.failed) throw std::bad_alloc();
}

}  // namespace proxbit
