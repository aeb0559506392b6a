"""What a request means on this machine, and whether it can ever be met here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuqueue.model import WHOLE, Gpu, Preset, Request
from gpuqueue.plan.types import Need, Policy
from gpuqueue.units import format_bytes

__all__ = ["could_hold", "need_of", "never_fits", "sizes_apart"]


def need_of(request: Request, gpus: Sequence[Gpu], policy: Policy) -> Need:
    """Resolve a request's preset and overrides into this machine's own terms.

    - ``light`` is one slot on the shared GPU, among light jobs; packing does not concern it.
    - ``one`` is a whole GPU and two slots, or, where its need is known (``share`` or ``memory``
      given) and packing is on, a part of a GPU and one slot.
    - ``two`` is all managed GPUs (``gpus`` says another number) and two slots; a share or memory
      is of each of them.
    - ``exclusive`` is all GPUs, whole, and all slots, with nothing beside it.
    - ``cpu``, and any other preset with ``gpus=0``, is no GPU and one slot.

    A share is rounded up to the coarsest grain among ``gpus``; one that reaches 1,000 thousandths
    is a whole GPU. Known memory without a share promises no compute (``compute`` 0). ``memory``
    None with ``compute`` above 0 and ``whole`` False stands for the proportional part of whatever
    card the job is placed on, ``compute * Gpu.memory // 1000`` bytes, since cards may differ.

    A preset's own slots are capped to the machine's; ``request.slots`` is taken as it is. Every
    job takes at least one slot, but for a notebook's kernel, which takes none (``Forms``).
    """
    preset = request.preset
    exclusive = preset is Preset.EXCLUSIVE
    count = _gpu_count(request, len(gpus))
    light = preset is Preset.LIGHT and count > 0
    compute = 0 if request.share is None or not count else _round_up(request.share, gpus)
    known = request.share is not None or request.memory is not None
    shares = light or (known and policy.packing and not exclusive and compute < WHOLE)
    whole = count > 0 and not shares
    return Need(
        gpus=count,
        compute=WHOLE if whole else compute,
        memory=request.memory if count else None,
        whole=whole,
        light=light,
        slots=_slots(request, policy, on_gpus=count > 0, whole=whole),
        exclusive=exclusive,
    )


def _gpu_count(request: Request, managed: int) -> int:
    if request.gpus is not None:
        return max(0, request.gpus)
    if request.preset is Preset.TWO:
        # where there is no GPU, "all of them" must not quietly become a CPU job
        return managed or 2
    if request.preset is Preset.EXCLUSIVE:
        return managed
    return 0 if request.preset is Preset.CPU else 1


def _round_up(share: int, gpus: Iterable[Gpu]) -> int:
    grain = max((gpu.grain for gpu in gpus), default=1)
    return min(WHOLE, -(-share // grain) * grain)


def _slots(request: Request, policy: Policy, *, on_gpus: bool, whole: bool) -> int:
    if request.slots is not None:
        return max(1, request.slots)
    if request.preset is Preset.EXCLUSIVE:
        own = policy.slots
    elif not on_gpus or request.preset in {Preset.LIGHT, Preset.CPU}:
        own = 1
    else:
        own = 2 if whole or request.preset is Preset.TWO else 1
    return max(1, min(own, policy.slots))


def could_hold(gpu: Gpu, need: Need) -> bool:
    """Whether one GPU, empty, is large enough for the need.

    A GPU of unknown total memory can be given whole and by compute; bytes cannot be promised on
    it, so a sharing job that names its memory is never placed there.
    """
    if need.memory is None:
        return True
    if gpu.memory is None:
        return need.whole
    return need.memory <= gpu.memory


def never_fits(request: Request, gpus: Sequence[Gpu], policy: Policy) -> str | None:
    """Why this machine, even empty, can never run the request; None if it can.

    A plain clause whose subject is the job: ``asks for 3 GPUs, this machine has 2``. Memory on
    GPUs of unknown size counts as never fitting only where no GPU of known size is large enough.
    """
    need = need_of(request, gpus, policy)
    if need.slots > policy.slots:
        return f"asks for {_count(need.slots, 'slot')}, this machine has {max(0, policy.slots)}"
    if need.gpus > len(gpus):
        has = f"this machine has {len(gpus)}" if gpus else "this machine has none; use --cpu"
        return f"asks for {_count(need.gpus, 'GPU')}, {has}"
    if need.light:
        return _light_never_fits(need, gpus, policy)
    able = sum(could_hold(gpu, need) for gpu in gpus)
    if able >= need.gpus:
        return None
    return _too_much_memory(need, gpus, able)


def _light_never_fits(need: Need, gpus: Sequence[Gpu], policy: Policy) -> str | None:
    shared = next((gpu for gpu in gpus if gpu.uuid == policy.shared_gpu), None)
    if need.gpus > 1:
        return f"asks for {need.gpus} GPUs, light jobs sit on the one shared GPU"
    if shared is None:
        return "is a light job, and no GPU of this machine is set aside for light jobs"
    if could_hold(shared, need) or need.memory is None:
        return None
    if shared.memory is None:
        return f"asks for {format_bytes(need.memory)} of device memory, {_UNTOLD_SHARED}"
    asked, has = sizes_apart(need.memory, shared.memory)
    return f"asks for {asked} of device memory, the shared GPU has {has}"


_UNTOLD = "and no GPU here tells how much it has; leave the memory out"
_UNTOLD_SHARED = "and the shared GPU does not tell how much it has; leave the memory out"


def _too_much_memory(need: Need, gpus: Sequence[Gpu], able: int) -> str:
    asked = need.memory or 0
    sizes = [gpu.memory for gpu in gpus if gpu.memory is not None]
    if not sizes:
        return f"asks for {format_bytes(asked)} of device memory, {_UNTOLD}"
    if able:
        return (
            f"asks for {format_bytes(asked)} of device memory on each of {need.gpus} GPUs, "
            f"this machine has {able} that large"
        )
    text, largest = sizes_apart(asked, max(sizes))
    return f"asks for {text} of device memory, the largest GPU has {largest}"


def sizes_apart(one: int, other: int) -> tuple[str, str]:
    """Two different sizes as people read them, exact where rounding would make them look equal."""
    texts = format_bytes(one), format_bytes(other)
    if one != other and texts[0] == texts[1]:
        return f"{one} bytes", f"{other} bytes"
    return texts


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
