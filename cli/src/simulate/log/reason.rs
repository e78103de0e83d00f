//! Why a line cannot be read.

/// Why a line cannot be read. The order is that of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::simulate) enum Reason {
    Format,
    Other,
    Wrapped,
    Piece,
    TwoWays,
    Repeated,
    NoTime,
    NoTimeField,
    NoClient,
    NoClientField,
    NoTarget,
    NoTargetField,
    NotAnAddress,
    NotARequest,
    TooLong,
    FarAway,
}

impl Reason {
    /// Returns the reason in words, and what to do.
    pub(in crate::simulate) fn text(self) -> &'static str {
        match self {
            Self::Format => {
                "in no known format: give its name, or the format string of nginx or Apache, with --format"
            }
            Self::Other => "not in the format that --format says",
            Self::Wrapped => "not wrapped as the first lines of the file are",
            Self::Piece => "a piece of a line that the container runtime has split",
            Self::TwoWays => "can be read in two ways: give the format with --format",
            Self::Repeated => "a field has two values",
            Self::NoTime => "no time",
            Self::NoTimeField => "no time: name its field with --field time=FIELD",
            Self::NoClient => "no address of a client",
            Self::NoClientField => "no address of a client: name its field with --field client=FIELD",
            Self::NoTarget => "no target of a request",
            Self::NoTargetField => "no target of a request: name its field with --field target=FIELD",
            Self::NotAnAddress => "the client is not an IP address",
            Self::NotARequest => "not an HTTP request",
            Self::TooLong => "longer than 256 KiB",
            Self::FarAway => "the time is far from that of all lines around, so the line is set aside",
        }
    }
}
