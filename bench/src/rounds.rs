//! Rounds that alternate between two sides, so that what else the machine does meets both.

/// Which side: an index into arrays of both.
pub(crate) const OURS: usize = 0;
/// The other one.
pub(crate) const PEERS: usize = 1;

/// Runs both sides so many times, and once before that is not counted (caches, connections, keys); who goes first
/// alternates. Told are the side and the number of the round, from 0 for the one that is not counted.
pub(crate) async fn interleave<T>(
    rounds: u64,
    mut run: impl AsyncFnMut(usize, u64) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<(T, T)>> {
    let mut all = Vec::new();
    for round in 0..=rounds {
        let both = if round % 2 == 0 {
            let mine = run(OURS, round).await?;
            (mine, run(PEERS, round).await?)
        } else {
            let theirs = run(PEERS, round).await?;
            (run(OURS, round).await?, theirs)
        };
        if round > 0 {
            all.push(both);
        }
    }
    Ok(all)
}
