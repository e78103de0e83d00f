//! The reasons why a pod gets no sidecar.

use std::fmt::{Display, Formatter, Result};

use sluice_crds::{INJECT_LABEL, INJECTED_ANNOTATION, SIDECAR_CONTAINER};

use super::capture::CaptureError;

/// The reason why a pod gets no sidecar. Its text says what keeps the pod from having one, and what to do. It tells nothing
/// but what the pod contains: the webhook does not know who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Skip {
    /// The pod has a sidecar.
    Present,
    /// The pod had a sidecar, which something removed.
    Removed,
    /// The pod is labelled to get none.
    OptedOut,
    /// The pod uses the host's network.
    HostNetwork,
    /// The pod stands for one that kubelet read from a file. The API server refuses any change of it.
    Mirror,
    /// The pod runs on Windows.
    Windows,
    /// The pod belongs to a Job, which would never complete while an ordinary container keeps running.
    Job,
    /// A container that is not the sidecar has its name.
    NameTaken,
    /// A container mounts a volume with the name of one of the sidecar's.
    VolumeTaken(String),
    /// The bounds of the namespace leave too little for a sidecar.
    NoRoom,
    /// No port of the pod can be captured.
    Capture(CaptureError),
}

impl Skip {
    /// Reports whether the pod is to have no sidecar, or has one. All else is a problem to tell.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        matches!(self, Self::Present | Self::OptedOut)
    }

    /// Returns the value of the metric label `outcome`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Removed => "removed",
            Self::OptedOut => "opted-out",
            Self::HostNetwork => "host-network",
            Self::Mirror => "mirror",
            Self::Windows => "windows",
            Self::Job => "job",
            Self::NameTaken | Self::VolumeTaken(_) => "name-taken",
            Self::NoRoom => "no-room",
            Self::Capture(_) => "nothing-to-capture",
        }
    }
}

impl Display for Skip {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Present => f.write_str("it has a sidecar"),
            Self::Removed => write!(
                f,
                "another webhook or a MutatingAdmissionPolicy removed it after Sluice had added it. `kubectl get \
                 mutatingwebhookconfigurations,mutatingadmissionpolicies` lists them: let it leave the container \
                 {SIDECAR_CONTAINER} in the pod, or label the pod {INJECT_LABEL}=false. If the pod was copied from one with a \
                 sidecar, remove the annotation {INJECTED_ANNOTATION}"
            ),
            Self::OptedOut => write!(f, "it is labelled {INJECT_LABEL}=false"),
            Self::HostNetwork => f.write_str("it uses the network of its host"),
            Self::Mirror => f.write_str(
                "kubelet made it from a file on its node, and such pods cannot be changed: run it as a DaemonSet",
            ),
            Self::Windows => f.write_str("it runs on Windows, which sidecars do not support"),
            Self::Job => f.write_str(
                "it belongs to a Job, which a sidecar would keep from completing: this needs Kubernetes 1.33",
            ),
            Self::NameTaken => {
                write!(f, "a container that is not Sluice's is named {SIDECAR_CONTAINER}: rename it")
            }
            Self::VolumeTaken(name) => {
                write!(f, "a container mounts a volume of its own named {name}, a name that the sidecar needs: rename it")
            }
            Self::NoRoom => write!(
                f,
                "the LimitRanges of its namespace leave no room for it: a sidecar needs a limit of 100m CPU and 64Mi memory \
                 beside the other containers. Raise them, or label the pod {INJECT_LABEL}=false"
            ),
            Self::Capture(error) => Display::fmt(error, f),
        }
    }
}
