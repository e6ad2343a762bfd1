"""What a replica would take, without taking it: a blank worker's second kind of job.

llama.cpp reads the file's header, lays out everything as for a real load and says in its log how
large it would be, but allocates nothing. Only the weights' sizes are not told: they are the bytes
of the tensors that stand in the header. Only a projector has to be loaded for that, into the host's
memory, and goes with the process.
"""

from __future__ import annotations

from pathlib import Path

from ...protocol.messages.devices import Measure, Measured
from ..parts import adapters_of, projectors_of
from .capacity import MOST_AUTOMATIC
from .context import plan_params
from .embedder import BATCH
from .embedding_context import plan_embedding
from .llama import Model, native_log
from .offload import offload_of
from .plan import context_length, plan_context
from .projector import measure_sight


def measure_load(measure: Measure) -> Measured:
    """What a replica takes that is loaded as `measure.load` says.

    For a process that does nothing else: a file that makes llama.cpp abort ends it. Raises
    `PronkError` (LOAD_FAILED) with the reason why such a replica cannot be.
    """
    load = measure.load
    adapters, projectors = adapters_of(load.model.parts), projectors_of(load.model.parts)
    model = Model(Path(load.model.weights), offload_of(load), adapters=adapters, dry=True)
    if model.generates:
        plan = plan_context(model, load)
        slots, params = plan.slots, plan_params(plan, offloaded=model.offloaded)
    else:
        slots = load.parallel or MOST_AUTOMATIC
        params = plan_embedding(model, context_length(model, load), 1, BATCH).params
    eyes, looking = measure_sight(model, projectors)
    with native_log.apart():
        model.new_context(params)
        remembered = native_log.remembered("KV") + native_log.remembered("RS")
        compute = native_log.on_devices("compute")
        output = native_log.on_devices("output")
    return Measured(
        measure.call,
        weights=model.weights + eyes,
        # An encoder remembers nothing of one request for the next.
        slot=remembered // slots if model.generates else 0,
        slots=slots,
        compute=max(compute.values(), default=0)
        + sum(output.values())
        + looking
        + (0 if model.generates else remembered),
        layers=model.layers,
    )
