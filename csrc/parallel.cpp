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

constexpr int64_t kMostRuns = 64;

// The next part of a run; a cache line of its own, since its owner counts without a pause.
struct alignas(64) Next {
  std::atomic<int64_t> part{0};
};

// A run of neighbouring parts for each member of the team, who helps the others when done. A member has
// the same run in call after call, so it finds in its caches what it wrote there: two cores may be far apart.
struct Job {
  void (*body)(void*, int64_t);
  void* data;
  int64_t parts;
  int64_t runs;
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<bool> failed{false};
  Next next[kMostRuns] = {};

  int64_t begin(int64_t run) const { return parts * run / runs; }
};

std::atomic<int64_t> seats{0};

// Any answer is right; the same one as in the last call is fast.
int64_t own_run(const Job& job) {
  if (std::this_thread::get_id() == job.caller) return 0;
  static thread_local const int64_t seat = seats.fetch_add(1, std::memory_order_relaxed);
  return 1 + seat % (job.runs - 1);
}

void take_parts(void* raw) {
  Job& job = *static_cast<Job*>(raw);
  const int64_t first = own_run(job);
  for (int64_t i = 0; i < job.runs; ++i) {
    const int64_t run = (first + i) % job.runs, begin = job.begin(run), count = job.begin(run + 1) - begin;
    for (;;) {
      const int64_t part = job.next[run].part.fetch_add(1, std::memory_order_relaxed);
      if (part >= count) break;
      try {
        job.body(job.data, begin + part);
      } catch (const std::bad_alloc&) {  // must not leave a thread that is not ours
        job.failed = true;
      }
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
  Job job{body, data, parts, std::min(team_size, kMostRuns)};
  const pb_team team = chosen_here ? chosen_here : chosen.load();
  (team ? team : own_team)(take_parts, &job, static_cast<unsigned>(team_size), 0);
  if (job.failed) throw std::bad_alloc();
}

}  // namespace proxbit
