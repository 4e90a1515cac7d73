// Barriers of a block's threads and of a cluster's; those in shared memory are in mbarrier.cpp.
#include "emulator/engine.h"

namespace xgemm::emulator {

void sync_threads() {
  Block& block = *current().block;
  NamedBarrier& barrier = block.barriers[0];
  if (barrier.arrived > 0 && barrier.expected != 0) fail("barrier 0 with two numbers of threads");
  barrier.expected = 0;  // all
  if (++barrier.arrived == block.live) {
    barrier.arrived = 0, ++barrier.turn;
    return;
  }
  wait_until([&, turn = barrier.turn] { return barrier.turn != turn; },
             [] { return std::string("__syncthreads"); });
}

namespace {

// True where this thread was the last of the barrier's turn.
bool arrive(int id, int threads) {
  if (id < 0 || id > 15 || threads <= 0 || threads % kWarp != 0) fail("no such named barrier");
  NamedBarrier& barrier = current().block->barriers[id];
  if (barrier.arrived > 0 && barrier.expected != threads) {
    fail("barrier " + std::to_string(id) + " with two numbers of threads");
  }
  barrier.expected = threads;
  if (++barrier.arrived < threads) return false;
  barrier.arrived = 0, ++barrier.turn;
  return true;
}

}  // namespace

void arrive_named(int id, int threads) { arrive(id, threads); }

void sync_named(int id, int threads) {
  if (id < 0 || id > 15) fail("no such named barrier");
  NamedBarrier& barrier = current().block->barriers[id];
  const uint64_t turn = barrier.turn;
  if (arrive(id, threads)) return;
  wait_until([&, turn] { return barrier.turn != turn; },
             [&] {
               return "barrier " + std::to_string(id) + ", with " +
                      std::to_string(barrier.arrived) + " of " + std::to_string(threads) +
                      " threads";
             });
}

void cluster_arrive() {
  Thread& thread = current();
  Cluster& cluster = *thread.block->cluster;
  thread.cluster_turn = cluster.turn;
  if (++cluster.arrived == cluster.live) cluster.arrived = 0, ++cluster.turn;
}

void cluster_wait() {
  const Thread& thread = current();
  const Cluster& cluster = *thread.block->cluster;
  wait_until([&] { return cluster.turn != thread.cluster_turn; },
             [] { return std::string("barrier.cluster.wait"); });
}

}  // namespace xgemm::emulator
