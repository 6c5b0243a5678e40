//! Values over time in one line of text.

/// The values as blocks of eight heights, scaled to the greatest. Zero is a space, and an unknown
/// value a dot. `most` is the maximum number of columns: with more values than columns, each column
/// shows the greatest of its values.
pub fn sparkline(values: &[Option<f64>], most: usize) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let share = values.len().div_ceil(most.max(1)).max(1);
    let columns = values.chunks(share);
    let columns: Vec<Option<f64>> =
        columns.map(|values| values.iter().flatten().copied().reduce(f64::max)).collect();
    let highest = columns.iter().flatten().copied().fold(0.0, f64::max);
    let block = |value: &Option<f64>| match value {
        None => '·',
        Some(value) if *value > 0.0 => {
            // From 0 to 8; the cast stops at the ends.
            let height = (value / highest * BLOCKS.len() as f64).ceil() as usize;
            BLOCKS[height.clamp(1, BLOCKS.len()) - 1]
        }
        Some(_) => ' ',
    };
    columns.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_never_shows_as_nothing() {
        assert_eq!(sparkline(&[Some(1.0), Some(8.0), Some(0.0), None], 80), "▁█ ·");
        assert_eq!(sparkline(&[Some(1.0), Some(8.0), Some(4.0)], 2), "█▄");
        assert_eq!(sparkline(&[Some(1e-9), Some(1.0)], 9), "▁█");
        assert_eq!(sparkline(&[Some(0.0)], 9), " ");
        assert_eq!(sparkline(&[], 0), "");
        let odd = [Some(f64::NAN), Some(f64::INFINITY), Some(-1.0)];
        assert_eq!(sparkline(&odd, 9).chars().count(), 3);
    }
}
