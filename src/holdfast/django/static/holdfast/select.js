// The box in the head of a table chooses all rows of the page, or none.
document.addEventListener("change", (event) => {
  if (event.target.id !== "select-all") return;
  for (const box of document.getElementsByName("_selected_action")) box.checked = event.target.checked;
});
