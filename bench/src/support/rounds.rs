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

/// Runs each of a number of contenders for a number of rounds and returns their results, in their order, for
/// each. An extra round 0 warms up, as in [`interleave`]. Every other round runs them in reverse.
pub(crate) async fn interleave_all<T>(
    rounds: u64,
    contenders: usize,
    mut run: impl AsyncFnMut(usize, u64) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<Vec<T>>> {
    let mut results = Vec::new();
    for round in 0..=rounds {
        let mut all = Vec::new();
        for turn in 0..contenders {
            let contender = if round % 2 == 0 { turn } else { contenders - 1 - turn };
            all.push(run(contender, round).await?);
        }
        if round % 2 == 1 {
            all.reverse();
        }
        if round > 0 {
            results.push(all);
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn contenders_take_turns_in_both_directions_and_keep_their_places() {
        let mut turns = Vec::new();
        let results = interleave_all(2, 3, async |contender, round| {
            turns.push(contender);
            Ok((contender, round))
        })
        .await
        .unwrap();
        assert_eq!(turns, [0, 1, 2, 2, 1, 0, 0, 1, 2]);
        assert_eq!(results, [[(0, 1), (1, 1), (2, 1)], [(0, 2), (1, 2), (2, 2)]]);
    }
}
