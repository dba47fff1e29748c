"""The vBar agent, which the document has installed and started: in an image and on a running machine."""

from __future__ import annotations

from tpu_image.catalogue.agent_process import AgentRuns
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.container_agent import ContainerAgent
from tpu_image.catalogue.requirement import Platform, Profile, Requirement

VBAR = Agent(
    name="vBar agent",
    program="vbar_control_agent",
    image="gcr.io/cloud-tpu-v2-images/vbar_control_agent:0.0.1",
    snap="vbarcontrolagent",
    arguments=(
        "--logtostderr",
        "--gid=",
        "--uid=",
        "--chroot=",
        "--census_enabled=false",
        "--loas_pwd_fallback_in_corp",
    ),
    port=8353,
    unit="tpu-image-vbar-agent.service",
)


class VbarAgent(ContainerAgent):
    """The agent that ICI, the network between chips, needs."""

    id = "vbar.agent"
    title = "the vBar agent is in the image and started at every boot; for GKE it is absent"
    why = (
        "Without the agent the interconnect between chips (ICI) is not set up, and programs that use more "
        "than one chip fail. GKE brings its own, with which a second one conflicts."
    )
    source = "document, sections “Installa l'agente vBar” and “Avvia l'agente vBar” (R8, R10)"
    agent = VBAR
    otherwise = "say --no-agent if something else brings it"
    remedy = f"name where {VBAR.image} is to come from (tpu-image build --agent SOURCE), or {otherwise}"

    def applies(self, profile: Profile) -> str:
        """Not where the user said that something else brings it; on GKE nothing else may."""
        if profile.agent_elsewhere and profile.platform is not Platform.GKE:
            return "the agent comes from elsewhere (--no-agent)"
        return ""


class VbarAgentRuns(AgentRuns):
    """The agent serves the chips of this machine."""

    id = "machine.agent"
    title = "the vBar agent runs and listens"
    why = "Device nodes and listed chips prove nothing: without its agent the interconnect (ICI) is down."
    source = "document, section “Avvia l'agente vBar”; the port as Google's own images show it"
    consequence = "the chips are not ready"
    agent = VBAR


REQUIREMENTS: tuple[Requirement, ...] = (VbarAgent(), VbarAgentRuns())
