"""What may happen to a toy cluster: things that pass, as opposed to parts that are silent for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unit.core import toy_done, toy_life
from unit.core.toy_parts import Node

if TYPE_CHECKING:
    from unit.core.toy_world import World


class Happenings:
    """Each is a method of the world."""

    def power_off(self: World, name: str) -> None:
        """Power and network of a node are cut."""
        if self.nodes[name].up:
            self.nodes[name] = Node(name, False, self.now)

    def boot(self: World, name: str) -> None:
        """It is back: the sandboxes of its pods are made anew; those made a third time get the address that they had."""
        if self.nodes[name].up:
            return
        self.nodes[name] = Node(name, True, self.now)
        for p in self.pods.values():
            if p.view.node == name and p.view.ip:
                p.obeys, p.ran, p.connected, p.container_ended_at = 0, 0, False, None
                p.launcher_starts += 1
                p.view = replace(p.view, ip=p.view.ip[:-1] + "2", trainer_terminated=False)
        self.wake()

    def crash(self: World) -> None:
        """A trainer ends badly."""
        run = self.current_run()
        if run and run.gone and not run.over and not run.finished:
            run.crashed = True

    def kill_trainer(self: World, index: int) -> None:
        """The kernel ends a trainer container; the kubelet starts it again."""
        run = self.current_run()
        p = self.pod(run.plan.members[index % len(run.plan.members)].uid) if run else None
        if p and p.container_ended_at is None:
            toy_life.end_container(self, p)

    def evict(self: World, index: int, grace: int = 5) -> None:
        """A pod is deleted through the API."""
        names = sorted(self.pods)
        if names:
            p = self.pods[names[index % len(names)]]
            if p.deleted_at is None:
                p.grace = grace
                toy_done.start_deleting(self, p)

    def change(self: World, **changes: Any) -> None:
        """The spec is edited."""
        self.job = replace(self.job, **changes)
        self.generation += 1
        self.version += 1  # a spec edit gives a new resourceVersion too
        self.most = max(self.most, self.job.max_workers)
        self.wake()

    def finish_in(self: World, steps: int) -> None:
        """The script ends so many steps from now."""
        self.until = (self.run.step if self.run else 0) + steps
