"""The driver of the Python engines, vLLM and SGLang: a digest-pinned container, a program, or a uv environment.

Which of them is ``offers``, what is said on the command line the dialect's, the life of the process ``process``'s.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sbproxy.catalog.core.model import ResolvedArtifact
from sbproxy.config.core.model_host import EngineConfig
from sbproxy.engines.binary import flags_of
from sbproxy.engines.container import ContainerEnclosure
from sbproxy.engines.core.container import (
    DEFAULT_SHM_GIB,
    HUB_PLACE,
    MODEL_PLACE,
    ContainerPlan,
    Person,
    container_name,
    pinned_image,
    run_container,
)
from sbproxy.engines.core.model import AcquisitionOption, Availability, EngineBinary, LaunchSpec
from sbproxy.engines.core.server_seat import ServerSeat
from sbproxy.engines.dialect import Dialect
from sbproxy.engines.driver import AcquireProgress
from sbproxy.engines.environment import engine_environment, repository_environment
from sbproxy.engines.kv_notice import warn_of_substitution
from sbproxy.engines.offers import Offer, Offers
from sbproxy.engines.ownership import OwnershipLedger
from sbproxy.engines.process import HOST, Arguments, Launch, LoopbackEngine
from sbproxy.engines.runtime_tool import RuntimeTool
from sbproxy.errors.engines import EngineBlocked, EngineIncompatible

MAX_DETAIL, MAX_REASON = 300, 500
FORMATS = ("safetensors", "pickle")
_INSIDE = "0.0.0.0"  # noqa: S104 - the container's own network namespace, which has no other way in


class PythonEngineDriver:
    """An :class:`EngineDriver`. ``config`` None: nothing is provisioned by the operator.

    ``network`` false (``--offline``) fetches nothing; ``headers`` is the folder of Python.h for other machines' sake.
    """

    def __init__(
        self,
        dialect: Dialect,
        config: EngineConfig | None,
        *,
        engines_root: Path,
        run_dir: Path,
        ownership: OwnershipLedger,
        environ: Mapping[str, str],
        network: bool = True,
        headers: Path | None = None,
    ) -> None:
        self.name = dialect.engine
        self._dialect = dialect
        self._config = config or EngineConfig()
        self._run_dir = run_dir.absolute()
        self._ownership = ownership
        self._environ = dict(environ)
        self._folder = engines_root.absolute() / dialect.engine
        self._offers = Offers(
            dialect, config, self._folder, self._environ, self._own_environment(None), network, headers=headers
        )

    def availability(self) -> Availability:
        """Never raises; the reason is one bounded line."""
        refusal = self._unfit()
        if refusal is not None:
            return Availability(self.name, "incompatible", refusal)
        offers = self._offers.weigh()
        options = tuple(
            AcquisitionOption(each.method, each.take is not None, each.detail[:MAX_DETAIL]) for each in offers
        )
        chosen = _choose(offers)
        if chosen.take is None:
            return Availability(self.name, chosen.state, _reason(chosen, offers), options=options)
        detail = chosen.detail[:MAX_DETAIL]
        return Availability(self.name, chosen.state, detail, chosen.program, chosen.version, options)

    def acquire(self, progress: AcquireProgress) -> EngineBinary:
        """The first usable offer, fetched when need be."""
        refusal = self._unfit()
        if refusal is not None:
            raise EngineIncompatible(self.name, refusal)
        offers = self._offers.weigh()
        chosen = _choose(offers)
        if chosen.take is None:
            refused = EngineIncompatible if chosen.state == "incompatible" else EngineBlocked
            raise refused(self.name, _reason(chosen, offers))
        self._make_folders()
        return chosen.take(progress)

    def check(self, artifact: ResolvedArtifact, spec: LaunchSpec, binary: EngineBinary) -> None:
        """Refuse what this build cannot run, before anything is stopped or started for it."""
        form = artifact.variant.format
        if form not in FORMATS:
            raise EngineIncompatible(self.name, f"it runs safetensors snapshots, {artifact.subject} is {form}")
        self._check_device(spec)
        words = self._arguments(binary, spec)(1, "alias", Path("key"))
        if binary.image is not None:
            plan = self._plan(binary, spec, "0" * 32, Path("/run"))
            run_container(self.name, replace(plan, port=1, command=words))

    async def launch(self, binary: EngineBinary, spec: LaunchSpec) -> LoopbackEngine:
        """See :class:`EngineDriver`."""
        warn_of_substitution(self.name, spec, self._dialect.kv_runs)
        return await LoopbackEngine.start(await asyncio.to_thread(self._launch, binary, spec), self._ownership)

    def _launch(self, binary: EngineBinary, spec: LaunchSpec) -> Launch:
        """Blocking: looks for the runtime of a container."""
        arguments, key = self._arguments(binary, spec), self._dialect.key_variable
        if binary.image is None:
            return Launch(binary, spec, arguments, self._process_environment(binary, spec), self._run_dir, key)
        tool = RuntimeTool.at(binary.program, self._environ)
        if tool is None:
            raise EngineBlocked(self.name, f"{binary.program} is not there any more")

        def enclose(token: str, folder: Path) -> ContainerEnclosure:
            return ContainerEnclosure(self.name, tool, self._plan(binary, spec, token, folder), key)

        return Launch(binary, spec, arguments, tool.environ, self._run_dir, key, enclose)

    def _unfit(self) -> str | None:
        """Why the configured acceleration is none of this engine's."""
        asked = self._config.acceleration
        if asked != "auto" and asked not in self._dialect.devices:
            runs = " and ".join(sorted(self._dialect.devices))
            return f"it runs on {runs}, engines.{self.name}.acceleration is {asked}"
        return None

    def _check_device(self, spec: LaunchSpec) -> None:
        asked = "cuda" if self._config.acceleration == "auto" else self._config.acceleration
        if spec.device != asked:
            key = f"engines.{self.name}.acceleration"
            hint = f"; set {key}: {spec.device}" if spec.device in self._dialect.devices else ""
            raise EngineIncompatible(self.name, f"{key} is {asked}, the plan uses {spec.device}{hint}")
        if spec.device == "cuda" and not spec.device_indexes:
            raise EngineIncompatible(self.name, "the plan names no device, and an engine is never given all of them")
        if spec.device == "cuda" and len(spec.device_indexes) != spec.tensor_parallel:
            devices = ",".join(str(index) for index in spec.device_indexes)
            reason = f"the plan gives it the devices {devices} for tensor_parallel {spec.tensor_parallel}"
            raise EngineIncompatible(self.name, reason)

    def _arguments(self, binary: EngineBinary, spec: LaunchSpec) -> Arguments:
        flags, enclosed = flags_of(binary), binary.image is not None
        if spec.repository is not None:
            if not spec.network:
                raise EngineIncompatible(self.name, f"{spec.repository} is a repository, which needs the network")
            model = spec.repository
        else:
            model = MODEL_PLACE if enclosed else str(spec.model_path)
        host = _INSIDE if enclosed else HOST
        return lambda port, alias, _: self._dialect.arguments(flags, spec, ServerSeat(host, port, alias, model))

    def _process_environment(self, binary: EngineBinary, spec: LaunchSpec) -> dict[str, str]:
        indexes = spec.device_indexes if spec.device == "cuda" else None
        environ = self._own_environment(indexes) | self._dialect.environment(spec)
        # What a build brings along (ninja, for one) lies beside its program.
        environ["PATH"] = os.pathsep.join([str(binary.program.parent), environ.get("PATH", os.defpath)])
        if spec.repository is not None:
            environ |= repository_environment(self._environ, spec.model_path)
        return environ

    def _own_environment(self, indexes: tuple[int, ...] | None) -> dict[str, str]:
        """Compiled kernels outlive a process, or each start would compile them again."""
        cache = str(self._folder / "cache")
        return engine_environment(self._environ, indexes) | {"XDG_CACHE_HOME": cache, "XDG_CONFIG_HOME": cache}

    def _make_folders(self) -> None:
        try:
            (self._folder / "cache").mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as failure:
            raise EngineBlocked(self.name, f"{self._folder} cannot be written: {failure.strerror}") from failure

    def _plan(self, binary: EngineBinary, spec: LaunchSpec, token: str, folder: Path) -> ContainerPlan:
        environ = self._dialect.environment(spec)
        hub = None
        if spec.repository is not None:
            hub = spec.model_path
            environ |= repository_environment(self._environ, Path(HUB_PLACE))
        return ContainerPlan(
            kind="podman" if binary.program.name == "podman" else "docker",
            name=container_name(spec.deployment, spec.generation, spec.replica, token),
            token=token,
            image=pinned_image(self.name, binary.image),
            entrypoint=self._dialect.entrypoint,
            command=(),
            port=0,
            model=None if spec.repository is not None else spec.model_path,
            devices=spec.device_indexes if spec.device == "cuda" else (),
            environ=environ,
            secrets_file=folder / "secrets",
            person=Person(os.getuid(), os.getgid()),
            shm_gib=self._config.shm_size_gib or DEFAULT_SHM_GIB,
            hub=hub,
        )


def _choose(offers: list[Offer]) -> Offer:
    usable = next((each for each in offers if each.take is not None), None)
    return usable or next((each for each in offers if each.state == "incompatible"), offers[-1])


def _reason(chosen: Offer, offers: list[Offer]) -> str:
    if chosen.state == "incompatible":
        return chosen.detail[:MAX_REASON]
    return "; ".join(each.detail for each in offers)[:MAX_REASON]
