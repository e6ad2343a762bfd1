"""How long the scheduler thinks: `python -m benchmarks.bench_scheduler`, or `make bench-scheduler`.

A simulated host with 1,000 devices, 200 models, 512 workers and 10,000 waiting requests is driven
by the policies of the scheduler, event by event: requests come and end, models are loaded and
evicted. Prints what one decision takes, with the board's account of the event that led to it.
"""

from __future__ import annotations

import argparse
import statistics
import time

from simulator.world import GIB, Model, World, gpus, processors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--workers", type=int, default=512)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="of simulated time")
    asked = parser.parse_args()
    models = [Model(f"{n:064x}", weights=(4 + n % 36) * GIB, slots=4) for n in range(asked.models)]
    world = World([*gpus(asked.devices), processors(4096 * GIB)], models, asked.workers)
    chains = [tuple(bytes([caller, link]) * 8 for link in range(32)) for caller in range(200)]

    def ask() -> None:
        caller = world.random.randrange(200)
        digest = world.random.choice(models).digest
        answer = world.random.randrange(50, 800)
        world.ask(f"caller {caller}", digest, 500, answer, chain=chains[caller])

    def refill() -> None:
        """Keeps as many waiting, so that each request that begins makes place for another one."""
        while len(world.waiting) < asked.waiting:
            ask()
        world.at(world.now + 0.05, refill)

    while len(world.waiting) < asked.waiting:
        ask()
    world.run(20.0)  # the first loads
    world.tally.decisions.clear()
    refill()
    began = time.perf_counter()
    tally = world.run(asked.seconds)
    took = time.perf_counter() - began
    decisions = sorted(tally.decisions)
    begun = sum(1 for request in tally.requests if request.began is not None)
    print(
        f"{asked.devices} devices, {asked.models} models, {asked.workers} workers, "
        f"{len(world.waiting)} waiting, {len(decisions)} decisions in {took:.1f} s"
    )
    print("| ms | mean | median | p95 | p99 | largest |")
    print("|---|---|---|---|---|---|")
    row = [
        statistics.fmean(decisions),
        *(decisions[int(part * (len(decisions) - 1))] for part in (0.5, 0.95, 0.99, 1.0)),
    ]
    print("| one decision | " + " | ".join(f"{1000 * value:.3f}" for value in row) + " |")
    print(f"{begun} requests begun, {sum(tally.loads.values())} loads, {tally.evictions} evictions")


if __name__ == "__main__":
    main()
