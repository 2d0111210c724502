//! Prints what a TCP path costs to make and to end.
fn main() {
    for neighbours in [0, 100_000] {
        println!("{neighbours} neighbours: {:?}", scoutline_engine::path_cost(neighbours, 100_000).unwrap());
    }
}
