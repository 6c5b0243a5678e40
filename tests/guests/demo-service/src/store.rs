//! Stores the notes in memory, with an index of their words.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::cmp::Reverse;

use crate::note::Note;

/// Contains a limited number of notes; the one stored the longest ago is evicted first.
pub(crate) struct Store {
    /// The notes by number, with the value of `clock` when each was stored.
    notes: BTreeMap<u32, (u64, Note)>,
    /// The notes in which each word occurs, with the number of occurrences.
    index: BTreeMap<String, BTreeMap<u32, u32>>,
    capacity: usize,
    /// The number of notes stored so far.
    clock: u64,
}

impl Store {
    /// An empty store for `capacity` notes; 0 counts as 1.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { notes: BTreeMap::new(), index: BTreeMap::new(), capacity: capacity.max(1), clock: 0 }
    }

    /// Stores a note; `true` if there was none with its number.
    #[inline(never)]
    pub(crate) fn put(&mut self, id: u32, note: Note) -> bool {
        let is_new = !self.remove(id);
        if self.notes.len() == self.capacity {
            let oldest = self.notes.iter().min_by_key(|entry| entry.1.0);
            if let Some((&oldest, _)) = oldest {
                self.remove(oldest);
            }
        }
        for (word, count) in note.words() {
            self.index.entry(word).or_default().insert(id, count);
        }
        self.clock += 1;
        self.notes.insert(id, (self.clock, note));
        is_new
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Note> {
        self.notes.get(&id).map(|(_, note)| note)
    }

    /// Removes a note; `false` if there is none with this number.
    #[inline(never)]
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let Some((_, note)) = self.notes.remove(&id) else {
            return false;
        };
        for word in note.words().into_keys() {
            if let Some(notes) = self.index.get_mut(&word) {
                notes.remove(&id);
                if notes.is_empty() {
                    self.index.remove(&word);
                }
            }
        }
        true
    }

    pub(crate) fn from(&self, id: u32) -> impl Iterator<Item = &Note> {
        self.notes.range(id..).map(|(_, (_, note))| note)
    }

    /// The numbers of the notes that contain at least one of the words, best first. Rare words
    /// score more.
    #[inline(never)]
    pub(crate) fn search<'w>(&self, words: impl Iterator<Item = &'w str>) -> Vec<u32> {
        let mut scores = BTreeMap::<u32, u64>::new();
        for word in words {
            let Some(notes) = self.index.get(&word.to_lowercase()) else {
                continue;
            };
            for (&id, &count) in notes {
                *scores.entry(id).or_default() += 1000 * u64::from(count) / notes.len() as u64;
            }
        }
        let mut ids: Vec<_> = scores.keys().copied().collect();
        ids.sort_by_cached_key(|id| {
            let title = self.get(*id).map(|note| note.title.to_lowercase());
            (Reverse(scores[id]), title, *id)
        });
        ids
    }
}
