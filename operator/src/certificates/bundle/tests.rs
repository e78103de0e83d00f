use super::*;

#[test]
fn a_certificate_is_renewed_in_time_and_an_authority_before_it_is_needed() {
    let names = ["sluice-control.sluice-system.svc".to_owned()];
    let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut bundle = Bundle::new(&names, start).unwrap();
    let first = bundle.signer.clone();
    let mut serving = 0;
    let mut overlap = 0;
    for day in 0..800 {
        let now = start + DAY * day;
        if let Some(next) = bundle.renewed(&names, now).unwrap() {
            if next.certificate != bundle.certificate {
                serving += 1;
                assert!(
                    split_pem(&bundle.trusted).contains(&next.signer),
                    "a signer is trusted before it signs"
                );
            }
            bundle = next;
        }
        assert!(expiry(&bundle.certificate).unwrap() > now + DAY * 9);
        assert!(split_pem(&bundle.trusted).contains(&bundle.signer));
        let old = split_pem(&bundle.trusted).contains(&first);
        overlap += i32::from(old && bundle.signer != first);
        assert!(split_pem(&bundle.trusted).len() <= 3);
    }
    assert!((35..=42).contains(&serving), "{serving} renewals");
    assert!(overlap >= 2 * SERVING_DAYS, "{overlap} days of overlap");
    assert_eq!(Bundle::from_data(&bundle.to_data()).unwrap().to_data(), bundle.to_data());
}

#[test]
fn after_a_time_off_a_new_authority_is_trusted_before_it_signs_unless_the_old_one_ends() {
    let names = ["sluice-control.sluice-system.svc".to_owned()];
    let start = Timestamp::UNIX_EPOCH;
    let old = Bundle::new(&names, start).unwrap();
    for (day, signs_at_once) in
        [(100, false), (246, false), (334, false), (336, true), (364, true), (400, true)]
    {
        let now = start + DAY * day;
        let next = old.renewed(&names, now).unwrap().unwrap();
        assert!(expiry(&next.certificate).unwrap() > now + DAY * 29);
        assert_eq!(next.signer != old.signer, signs_at_once, "day {day}");
        assert_eq!(next.successor.is_some(), day == 246 || day == 334, "day {day}");
        assert!(is_signed_by(&next.certificate, &next.signer), "day {day}");
        assert!(expiry(&next.signer).unwrap() >= expiry(&next.certificate).unwrap(), "day {day}");
    }
    let next = old.renewed(&names, start + DAY * 246).unwrap().unwrap();
    let later = next.renewed(&names, start + DAY * 267).unwrap().unwrap();
    assert!(later.signer != old.signer && split_pem(&next.trusted).contains(&later.signer));
}

#[test]
fn a_damaged_secret_is_an_error_that_names_the_field() {
    let mut data = Bundle::new(&["a".into()], Timestamp::UNIX_EPOCH).unwrap().to_data();
    data.insert("tls.key".into(), "nonsense".into());
    assert!(format!("{:#}", Bundle::from_data(&data).err().unwrap()).contains("tls.key"));
    data.remove("ca.crt");
    assert!(format!("{:#}", Bundle::from_data(&data).err().unwrap()).contains("ca.crt"));
}

#[test]
fn a_certificate_for_another_server_is_issued_when_it_is_due_or_of_another_authority() {
    let names = ["redis".to_owned()];
    let start = Timestamp::UNIX_EPOCH;
    let bundle = Bundle::new(&names, start).unwrap();
    let (first, _) = bundle.issue(&names, None, start).unwrap().unwrap();
    let again = |at: Timestamp, bundle: &Bundle| bundle.issue(&names, Some(&first), at).unwrap().is_some();
    assert!(!again(start, &bundle) && !again(start + DAY * 19, &bundle) && again(start + DAY * 21, &bundle));
    assert!(again(start, &Bundle::new(&names, start + DAY).unwrap()));
    assert!(bundle.issue(&names, Some("nonsense"), start).unwrap().is_some());
}
