//! Rounds that alternate between Sluice and its peer, so that other load on the machine affects both.

/// The two sides of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sluice,
    Peer,
}

impl Side {
    /// Returns this side's element of a pair of Sluice's and the peer's.
    pub(crate) fn of<T>(self, [ours, peers]: [T; 2]) -> T {
        match self {
            Self::Sluice => ours,
            Self::Peer => peers,
        }
    }
}

/// Runs each side for a number of rounds and returns Sluice's result and the peer's for each. An extra round
/// 0 warms up caches, connections and keys and is not returned. The side that goes first alternates.
pub(crate) async fn interleave<T>(
    rounds: u64,
    mut run: impl AsyncFnMut(Side, u64) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<(T, T)>> {
    let mut results = Vec::new();
    for round in 0..=rounds {
        let both = if round % 2 == 0 {
            let ours = run(Side::Sluice, round).await?;
            (ours, run(Side::Peer, round).await?)
        } else {
            let peers = run(Side::Peer, round).await?;
            (run(Side::Sluice, round).await?, peers)
        };
        if round > 0 {
            results.push(both);
        }
    }
    Ok(results)
}
