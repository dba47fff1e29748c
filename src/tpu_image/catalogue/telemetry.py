"""The AI Telemetry Collector, which the document calls optional."""

from __future__ import annotations

from tpu_image.catalogue.agent_process import AgentRuns
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.container_agent import ContainerAgent
from tpu_image.catalogue.requirement import Platform, Profile, Requirement

COLLECTOR = Agent(
    name="AI Telemetry Collector",
    program="ai-telemetry-collector",
    image="gcr.io/cloud-tpu-v2-images/ai-telemetry-collector:latest",
    snap="ai-telemetry-collector",
    unit="tpu-image-telemetry-collector.service",
    needs_root=False,
    configuration="/etc/ai-telemetry-collector/config.yaml",
)


class TelemetryCollector(ContainerAgent):
    """The collector of metrics of the TPU runtime."""

    id = "telemetry.collector"
    title = "the AI Telemetry Collector is in the image and started at every boot; for GKE it is absent"
    why = (
        "It sends metrics of the TPU runtime to Cloud Monitoring or Prometheus. GKE brings its own, with "
        "which a second one conflicts."
    )
    source = "document, section “(Facoltativo) Installa ed esegui AI Telemetry Collector” (R9)"
    agent = COLLECTOR
    otherwise = "leave telemetry off"
    remedy = f"name where {COLLECTOR.image} is to come from (tpu-image build --telemetry-agent SOURCE), or {otherwise}"

    def applies(self, profile: Profile) -> str:
        """Where it is asked for, and on GKE, where it must be absent."""
        if profile.telemetry or profile.platform is Platform.GKE:
            return ""
        return "telemetry was not asked for (it is optional)"


class TelemetryCollectorRuns(AgentRuns):
    """The collector runs on this machine."""

    id = "machine.telemetry"
    title = "the AI Telemetry Collector runs"
    why = "Metrics of the TPU runtime are collected by it alone."
    source = "document, section “(Facoltativo) Installa ed esegui AI Telemetry Collector” (R9)"
    agent = COLLECTOR
    consequence = "no metrics of them are collected"

    def applies(self, profile: Profile) -> str:
        """Where it is asked for."""
        return super().applies(profile) or ("" if profile.telemetry else "telemetry was not asked for")


REQUIREMENTS: tuple[Requirement, ...] = (TelemetryCollector(), TelemetryCollectorRuns())
