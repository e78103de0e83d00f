use std::collections::BTreeSet;

use super::*;

#[test]
fn each_namespace_store_and_epoch_has_its_own_password() {
    let mut seen = BTreeSet::new();
    for (root, store, epoch, namespace) in
        [(1, "a", 0, "n"), (2, "a", 0, "n"), (1, "b", 0, "n"), (1, "a", 1, "n"), (1, "a", 0, "m")]
    {
        let passwords = Passwords::new(&[root; 32], &StoreKey::new("s", store), epoch, false);
        let user = passwords.user(namespace);
        assert_eq!(user.passwords.len(), 1);
        seen.insert(user.passwords[0].expose().to_owned());
        assert_eq!(passwords.user(namespace), user);
    }
    assert_eq!(seen.len(), 5);
}

#[test]
fn the_password_before_is_accepted_for_a_while_and_no_other() {
    let at = |epoch, accepts| {
        Passwords::new(&[1; 32], &StoreKey::new("s", "a"), epoch, accepts).user("n").passwords
    };
    assert_eq!(at(3, true), [at(3, false), at(2, false)].concat());
    assert_eq!(at(0, true), at(0, false));
}
