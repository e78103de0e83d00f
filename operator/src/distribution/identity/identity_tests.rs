use super::*;

#[test]
fn the_expiry_of_a_token_is_read_and_an_unreadable_token_has_none() {
    let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(r#"{"exp":1700000000}"#));
    assert_eq!(expiry(&token), Some(1_700_000_000));
    for nonsense in ["", "a.b", "a.!.c", "a.e30.c"] {
        assert_eq!(expiry(nonsense), None);
    }
}
