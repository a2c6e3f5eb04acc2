//! Random numbers that a seed repeats (SplitMix64).

#[derive(Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another sequence of the same seed.
    pub(crate) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// In so many of a hundred cases.
    pub(crate) const fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.next() % all.len() as u64).unwrap()]
    }
}
