//! The accuracy suite: loads whose truth is known, beside what a profile says of them.

pub mod capture;
pub mod images;
pub mod judge;
pub mod row;
pub mod statistics;
